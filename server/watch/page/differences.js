"use strict";
/** Where the settings of several runs differ. */
const differences = (() => {
  const { element } = dom;

  function view(all) {
    // What heads the columns needs no row.
    const isLabel = (name) => all.runs.every(({ id, label }) => String(all.differences[name][id]) === label);
    const names = Object.keys(all.differences || {}).filter((name) => !isLabel(name));
    const same = Object.entries(all.same || {});
    const head = element(
      "tr",
      {},
      element("th", {}, "Setting"),
      all.runs.map(({ label }, index) =>
        element("th", { class: "num" }, curves.line(index), element("span", {}, label)),
      ),
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

  return { view };
})();
