"use strict";
/** The view of several runs side by side: who reaches a score with the least. */
const compare = (() => {
  const { element } = dom;
  const STYLES = [
    // a curve is told by its dashes first, then by its colour
    { colour: "curve-1", dash: [] },
    { colour: "curve-2", dash: [] },
    { colour: "curve-3", dash: [7, 4] },
    { colour: "curve-4", dash: [2, 3] },
    { colour: "curve-5", dash: [10, 3, 2, 3] },
    { colour: "curve-6", dash: [4, 2] },
    { colour: "curve-1", dash: [1, 2] },
    { colour: "curve-2", dash: [7, 4] },
  ];
  const WORDS = { sent: "Sent per client", round: "Rounds", time: "Time" };
  const CHART_HEIGHT = 380;
  const NARROW = 760; // a chart that is narrower names its curves above it

  const newState = () => ({ axis: "sent", level: null });
  const decimalsOf = (number) => (String(number).split(".")[1] || "").length;
  const levelText = (all, index) => all.levels[index].toFixed(Math.max(...all.levels.map(decimalsOf)));
  const styleOf = (index) => STYLES[index % STYLES.length];

  /**
   * @param {Object} all what is compared
   * @param {{axis: string, level: ?number}} state
   * @param {{changed: function(): void, choosing: boolean}} page
   */
  function view(all, state, page) {
    const level = levelOf(all, state);
    return [
      heading(all, page),
      scorePanel(all, state, level, page.changed),
      element(
        "div",
        { class: "pair compared", "data-key": "pair" },
        reach(all, state, level, page.changed),
        differences(all),
      ),
    ];
  }

  const valueOf = (reached, axis) => (reached ? reached[axis] : null);
  const reachedBy = (all, level) => all.runs.filter(({ id }) => all.reach[id][level]).length;

  /** The level that is looked at: the reader's, or the highest that two reach, or that one does. */
  function levelOf(all, state) {
    if (state.level !== null && state.level < all.levels.length) return state.level;
    const highest = (least) =>
      all.levels
        .map((_, index) => index)
        .filter((index) => reachedBy(all, index) >= least)
        .pop();
    return highest(2) ?? highest(1) ?? 0;
  }

  function heading(all, { choosing }) {
    const densities = [...new Set(all.runs.map(({ density }) => density))]
      .filter(formats.known)
      .sort()
      .map(formats.density);
    const density =
      densities.length === 1
        ? `every model at density ${densities[0]}`
        : `models of different density: ${densities.join(", ")}`;
    return element(
      "div",
      { class: "heading", "data-key": "heading" },
      element(
        "div",
        {},
        element("h1", {}, all.title),
        parts.dots(
          formats.known(all.same.clients) ? formats.plural(all.same.clients, "client") : null,
          densities.length ? density : null,
        ),
      ),
      choosing
        ? element("div", { class: "actions" }, element("a", { class: "button", href: "#/" }, "Choose runs …"))
        : null,
    );
  }

  // ------------------------------------------------------------------------------------------------ the curves

  function scorePanel(all, state, level, changed) {
    const options = Object.entries(axes.KINDS).map(([kind, { option }]) => [kind, option]);
    const choose = (kind) => {
      state.axis = kind;
      changed();
    };
    return parts.panel(
      "score",
      "score-panel",
      parts.header(
        all.metric,
        parts.choice({
          name: "compare-axis",
          legend: "Horizontal axis",
          before: "against",
          options,
          chosen: state.axis,
          choose,
        }),
      ),
      element("p", { class: "answer" }, all.sentences[state.axis] || ""),
      element("div", {
        class: "chart",
        role: "img",
        "data-key": "chart",
        drawn: (host) => chart.show(host, picture(all, state.axis, level, host.clientWidth)),
      }),
    );
  }

  function picture(all, kind, level, width) {
    const direct = width >= NARROW;
    return {
      key: `${all.runs.map(({ id }) => id)} ${kind} ${direct}`,
      kind,
      title: axes.KINDS[kind].title(all.runs[0].sent_kind),
      height: CHART_HEIGHT,
      curves: all.runs.map((one, index) => ({
        name: one.label,
        label: `${one.label} ${formats.score(lastOf(one.curve.score))}`,
        ...styleOf(index),
        x: one.curve[kind],
        y: one.curve.score,
      })),
      range: kind === "sent" ? null : [0, Math.max(1, ...all.runs.map((one) => lastOf(one.curve[kind]) || 0))],
      marks: [],
      level: all.levels.length ? levelPicture(all, kind, level) : null,
      band: null,
      direct,
      readout: (place) => readout(all, kind, place, direct),
      describe: `${all.metric} of ${formats.plural(all.runs.length, "run")} against ${axes.KINDS[kind].option}. ${all.sentences[kind] || ""}`,
    };
  }

  const lastOf = (values) => values[values.length - 1];

  function levelPicture(all, kind, level) {
    const reached = all.runs
      .map((one, index) => ({ x: valueOf(all.reach[one.id][level], kind), colour: styleOf(index).colour }))
      .filter(({ x }) => formats.known(x));
    return {
      value: all.levels[level],
      text: `to reach ${levelText(all, level)}`,
      reached: reached.map(({ x, colour }) => ({ x, colour, text: axes.KINDS[kind].tick(x) })),
    };
  }

  function readout(all, kind, place, direct) {
    if (place === null && direct) return [element("span", {}, "Point at a curve for its numbers.")];
    const score = (one) =>
      place === null ? lastOf(one.curve.score) : chart.scoreAt({ x: one.curve[kind], y: one.curve.score }, place);
    const item = (one, index) =>
      element("span", {}, line(index), one.label, " ", element("b", {}, formats.score(score(one))));
    return [
      place === null
        ? null
        : element("span", {}, `${axes.KINDS[kind].option} `, element("b", {}, axes.KINDS[kind].tick(place))),
      ...all.runs.map(item),
    ];
  }

  function line(index) {
    const { colour, dash } = styleOf(index);
    const path = element("path", {
      d: "M0 4H26",
      class: `stroke-${colour}`,
      "stroke-dasharray": dash.join(" ") || null,
    });
    return element("svg", { class: "key-line", viewBox: "0 0 26 8", "aria-hidden": "true" }, path);
  }

  // ------------------------------------------------------------------------------------------------ the tables

  function reach(all, state, level, changed) {
    const choose = (index) => {
      state.level = Number(index);
      changed();
    };
    const options = all.levels.map((_, index) => [index, levelText(all, index)]);
    const least = all.levels.map((_, index) =>
      Math.min(...all.runs.map(({ id }) => valueOf(all.reach[id][index], state.axis)).filter(formats.known)),
    );
    return parts.panel(
      "reach",
      "reach",
      parts.header(
        WORDS[state.axis],
        all.levels.length
          ? parts.choice({
              name: "level",
              legend: "Score to reach",
              before: "to reach",
              options,
              chosen: level,
              choose,
            })
          : null,
      ),
      element(
        "div",
        { class: "scroll" },
        element(
          "table",
          {},
          reachHead(all, level),
          element(
            "tbody",
            {},
            all.runs.map((_, index) => reachRow(all, index, state.axis, level, least)),
          ),
        ),
      ),
      element("footer", {}, footnote(all, state.axis)),
    );
  }

  function footnote(all, axis) {
    const values =
      axis === "sent" && all.runs[0].sent_kind === "values"
        ? "Values only: nothing was encoded, and 4 bytes are counted for each nonzero value. "
        : "";
    return `${values}×: times the least, which is bold.`;
  }

  function reachHead(all, level) {
    const column = (_, index) => element("th", { class: index === level ? "num on" : "num" }, levelText(all, index));
    return element(
      "thead",
      {},
      element("tr", {}, element("th", {}, "Run"), all.levels.map(column), element("th", { class: "num best" }, "Best")),
    );
  }

  function reachRow(all, place, axis, level, least) {
    const one = all.runs[place];
    const best = one.best || {};
    return element(
      "tr",
      { "data-key": one.id },
      element(
        "td",
        { class: "method" },
        line(place),
        element("a", { href: `#/run/${encodeURIComponent(one.id)}` }, one.label),
      ),
      all.levels.map((_, index) => reachCell(all.reach[one.id][index], axis, least[index], index === level)),
      element(
        "td",
        { class: "num best" },
        formats.score(best.score),
        element("small", {}, `round ${formats.count(best.round)}`),
      ),
    );
  }

  const READ = { sent: (value) => formats.text(formats.bytes(value)), round: formats.count, time: formats.duration };

  const twoDigits = (ratio) => (ratio < 9.95 ? ratio.toFixed(1) : formats.count(Math.round(ratio)));

  function reachCell(reached, axis, least, on) {
    const value = valueOf(reached, axis);
    const kind = on ? "num on" : "num";
    if (!formats.known(value)) return element("td", { class: `${kind} muted` }, reached ? "not known" : "not reached");
    const times = value > least ? `× ${twoDigits(value / least)}` : "";
    const round = axis === "round" ? "" : `round ${formats.count(reached.round)}`;
    return element(
      "td",
      { class: kind },
      element("span", { class: value === least ? "least" : null }, READ[axis](value)),
      element("small", {}, [times, round].filter(Boolean).join(", ")),
    );
  }

  function differences(all) {
    const isLabel = (name) => all.runs.every(({ id, label }) => String(all.differences[name][id]) === label); // it heads the columns
    const names = Object.keys(all.differences || {}).filter((name) => !isLabel(name));
    const same = Object.entries(all.same || {});
    const head = element(
      "tr",
      {},
      element("th", {}, "Setting"),
      all.runs.map(({ label }, index) => element("th", { class: "num" }, line(index), element("span", {}, label))),
    );
    return parts.panel(
      "differences",
      "differences",
      parts.header("Settings that differ"),
      names.length
        ? element(
            "div",
            { class: "scroll" },
            element(
              "table",
              {},
              element("thead", {}, head),
              element(
                "tbody",
                {},
                names.map((name) => differenceRow(all, name)),
              ),
            ),
          )
        : element("p", { class: "none muted" }, "None: these runs have the same settings."),
      same.length
        ? element(
            "details",
            {},
            element(
              "summary",
              {},
              `${formats.plural(same.length, "setting")} ${same.length === 1 ? "is" : "are"} the same`,
            ),
            element(
              "ul",
              {},
              same.map(([name, value]) => element("li", {}, element("code", {}, name), " ", String(value))),
            ),
          )
        : null,
    );
  }

  /** Where most agree, those that do not are bold. */
  function differenceRow(all, name) {
    const values = all.runs.map(({ id }) => String(all.differences[name][id] ?? "–"));
    const usual = values.reduce(
      (most, value) => (often(values, value) > often(values, most) ? value : most),
      values[0],
    );
    const bold = (value) => often(values, usual) > 1 && value !== usual;
    return element(
      "tr",
      {},
      element("td", {}, element("code", {}, name)),
      values.map((value) => element("td", { class: bold(value) ? "num differs" : "num" }, value)),
    );
  }

  const often = (values, value) => values.filter((one) => one === value).length;

  return { newState, view };
})();
