"use strict";
/** The one thing that the operator of a run should know first. */
const banner = (() => {
  const { element } = dom;
  const SIGNS = { diverged: "failed", "control sum": "failed", stopped: "stopped" };

  /** The trouble of now, or what was the last; nothing where there was none. */
  const view = (one, state, changed) => (one.banner ? trouble(one, state, changed) : overcome(one, state));

  function trouble({ banner: { kind, title, text, clients: names, deadline }, command }, state, changed) {
    const sign = SIGNS[kind] || "late";
    state.trouble = title;
    const point = (name) => {
      state.pointed = name;
      changed();
      scrollToClient(name);
    };
    return element(
      "div",
      { class: `banner is-${sign}-banner`, role: "status", "data-key": "banner" },
      signs.icon(sign),
      element(
        "div",
        { class: "words" },
        element("p", {}, element("strong", {}, withNames(title, names, point))),
        text
          ? element(
              "p",
              {},
              withCommand(text, command, (words) => withNames(words, names, point)),
            )
          : null,
      ),
      deadline ? countdown(deadline) : null,
    );
  }

  /** Trouble that is over keeps its place: what is below does not jump each time that a run waits for a moment. */
  function overcome(one, { trouble: last }) {
    if (!last || !signs.isGoing(one)) return null;
    return element(
      "div",
      { class: "banner is-past-banner", role: "status", "data-key": "banner" },
      signs.icon("done"),
      element(
        "div",
        { class: "words" },
        element("p", {}, "The run goes on."),
        element("p", { class: "muted" }, `It is over: ${last}`),
      ),
    );
  }

  function scrollToClient(name) {
    const row = [...document.querySelectorAll("tr[data-client]")].find((one) => one.dataset.client === name);
    if (row) row.scrollIntoView({ block: "center", behavior: "smooth" });
  }

  /** A text in which the names of clients lead to their rows. */
  function withNames(text, names, point) {
    const name = (names || [])
      .filter((one) => one && text.includes(one))
      .sort((one, other) => other.length - one.length)[0];
    if (!name) return [text];
    const [before, ...after] = text.split(name);
    const others = names.filter((one) => one !== name);
    return [
      ...withNames(before, others, point),
      element("button", { class: "name-link", type: "button", onclick: () => point(name) }, name),
      ...withNames(after.join(name), others, point),
    ];
  }

  /** A text in which the command that goes on can be taken along. */
  function withCommand(text, command, written) {
    const [before, ...after] = command ? text.split(command) : [text];
    return after.length ? [...written(before), parts.command(command), ...written(after.join(command))] : written(text);
  }

  function countdown({ ends, seconds }) {
    const left = Math.max(0, (Date.parse(ends) - Date.now()) / 1000);
    const words = element(
      "span",
      {},
      element("span", {}, "deadline"),
      element("span", {}, left > 0 ? `in ${formats.duration(Math.ceil(left))}` : "now"),
    );
    return element("div", { class: "deadline" }, words, parts.bar(1 - left / seconds));
  }

  return { view };
})();
