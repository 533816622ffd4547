"use strict";
/** What each run needs to reach a score. */
const reach = (() => {
  const { element } = dom;
  const WORDS = { sent: "Sent per client", round: "Rounds", time: "Time" };
  const decimalsOf = (number) => (String(number).split(".")[1] || "").length;
  const levelText = (all, index) => all.levels[index].toFixed(Math.max(...all.levels.map(decimalsOf)));
  const valueOf = (reached, axis) => (reached ? reached[axis] : null);

  function view(all, state, level, changed) {
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
        curves.line(place),
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

  return { view, levelText, valueOf };
})();
