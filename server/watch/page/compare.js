"use strict";
/** The view of several runs side by side: who reaches a score with the least. */
const compare = (() => {
  const { element } = dom;
  const CHART_HEIGHT = 380;
  const NARROW = 760; // a chart that is narrower names its curves above it

  const newState = () => ({ axis: "sent", level: null });

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
        reach.view(all, state, level, page.changed),
        differences.view(all),
      ),
    ];
  }

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

  function scorePanel(all, state, level, changed) {
    return parts.panel(
      "score",
      "score-panel",
      parts.header(
        all.metric,
        parts.axisChoice("compare-axis", state, changed),
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
        ...curves.styleOf(index),
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
      .map((one, index) => ({ x: reach.valueOf(all.reach[one.id][level], kind), colour: curves.styleOf(index).colour }))
      .filter(({ x }) => formats.known(x));
    return {
      value: all.levels[level],
      text: `to reach ${reach.levelText(all, level)}`,
      reached: reached.map(({ x, colour }) => ({ x, colour, text: axes.KINDS[kind].tick(x) })),
    };
  }

  function readout(all, kind, place, direct) {
    if (place === null && direct) return [element("span", {}, "Point at a curve for its numbers.")];
    const score = (one) =>
      place === null ? lastOf(one.curve.score) : chart.scoreAt({ x: one.curve[kind], y: one.curve.score }, place);
    const item = (one, index) =>
      element("span", {}, curves.line(index), one.label, " ", element("b", {}, formats.score(score(one))));
    return [
      place === null
        ? null
        : element("span", {}, `${axes.KINDS[kind].option} `, element("b", {}, axes.KINDS[kind].tick(place))),
      ...all.runs.map(item),
    ];
  }

  return { newState, view };
})();
