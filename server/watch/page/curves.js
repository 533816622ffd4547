"use strict";
/** How the curves of several runs are told apart, in a chart and in tables. */
const curves = (() => {
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

  const styleOf = (index) => STYLES[index % STYLES.length];

  /** A piece of a curve, for a legend. */
  function line(index) {
    const { colour, dash } = styleOf(index);
    const path = element("path", {
      d: "M0 4H26",
      class: `stroke-${colour}`,
      "stroke-dasharray": dash.join(" ") || null,
    });
    return element("svg", { class: "key-line", viewBox: "0 0 26 8", "aria-hidden": "true" }, path);
  }

  return { styleOf, line };
})();
