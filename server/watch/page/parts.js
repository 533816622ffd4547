"use strict";
/** Small parts that several views are made of. */
const parts = (() => {
  const { element } = dom;

  const dots = (...items) =>
    element(
      "p",
      { class: "dots" },
      items.filter(Boolean).map((item) => element("span", {}, item)),
    );
  const quantity = ({ value, unit }) => [value, unit ? element("span", { class: "unit" }, unit) : null];
  const panel = (key, kind, ...children) =>
    element("section", { class: `panel ${kind}`, "data-key": key }, ...children);
  const header = (title, ...children) => element("header", {}, element("h2", {}, title), ...children);
  const state = (sign, ...words) =>
    element("span", { class: `state is-${sign}` }, signs.icon(sign), element("span", {}, ...words));

  function bar(share, kind = "") {
    const width = `${(100 * Math.min(1, Math.max(0, share || 0))).toFixed(1)}%`;
    return element("span", { class: `bar ${kind}` }, element("i", { style: { width } }));
  }

  /** A curve without axes. */
  function spark(values, kind = "") {
    const known = (values || []).filter(formats.known);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const height = (value) => (high > low ? 26 - (24 * (value - low)) / (high - low) : 14);
    const points = known.map(
      (value, index) => `${((100 * index) / Math.max(1, known.length - 1)).toFixed(1)} ${height(value).toFixed(1)}`,
    );
    const line = points.length > 1 ? `M${points.join("L")}` : "";
    return element(
      "svg",
      { class: `spark ${kind}`, viewBox: "0 0 100 28", preserveAspectRatio: "none", "aria-hidden": "true" },
      element("path", { d: line }),
    );
  }

  /** One of a few, as radio buttons in a row. */
  function choice({ name, legend, before, options, chosen, choose }) {
    const option = ([value, text]) => {
      const input = element("input", {
        type: "radio",
        name,
        value,
        checked: String(value) === String(chosen),
        onchange: () => choose(value),
      });
      return element("label", { "data-key": String(value) }, input, element("span", {}, text));
    };
    return element(
      "fieldset",
      { class: "choice end" },
      element("legend", { class: "hidden-text" }, legend),
      element("span", { "aria-hidden": "true" }, before),
      element("span", { class: "options" }, options.map(option)),
    );
  }

  /** A line for a terminal, with a button that takes it along. */
  function command(text) {
    const copy = (event) => {
      const button = event.currentTarget;
      navigator.clipboard?.writeText(text).then(
        () => {
          button.textContent = "Copied";
        },
        () => select(button.previousSibling),
      );
      if (!navigator.clipboard) select(button.previousSibling);
    };
    return element(
      "span",
      { class: "command" },
      element("code", {}, text),
      element("button", { class: "button small", type: "button", onclick: copy }, "Copy"),
    );
  }

  const select = (node) => getSelection().selectAllChildren(node);

  /** The first of a long list, and a button for all. */
  function shortened(items, most, all, showAll, noun) {
    const shown = all ? items : items.slice(0, most);
    const button = element(
      "button",
      { class: "button small", type: "button", onclick: showAll },
      `Show all ${formats.plural(items.length, noun)}`,
    );
    return { shown, more: shown.length < items.length ? element("footer", { "data-key": "more" }, button) : null };
  }

  /** What the score is drawn against. */
  function axisChoice(name, state, changed) {
    return choice({
      name,
      legend: "Horizontal axis",
      before: "against",
      options: Object.entries(axes.KINDS).map(([kind, { option }]) => [kind, option]),
      chosen: state.axis,
      choose: (kind) => {
        state.axis = kind;
        changed();
      },
    });
  }

  return { dots, quantity, panel, header, state, bar, spark, choice, axisChoice, command, shortened };
})();
