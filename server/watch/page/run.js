"use strict";
/** The view of one run: how it does, what it waits for, its score, events and clients. */
const run = (() => {
  const { element } = dom;
  const AT_FIRST = 20;

  const newState = () => ({ axis: "round", allClients: false, allCoefficients: false, pointed: null, trouble: null });

  /**
   * @param {Object} one a run
   * @param {{axis: string, allClients: boolean, allCoefficients: boolean, pointed: ?string,
   *     trouble: ?string}} state what was last shown in the banner is its trouble
   * @param {{changed: function(): void, pick: function(string): void, reportAddress: ?string}} page
   */
  function view(one, state, page) {
    return [
      heading(one, page),
      figures.view(one),
      banner.view(one, state, page.changed),
      next(one),
      element("div", { class: "split", "data-key": "split" }, score.view(one, state, page.changed), events(one)),
      clients.table(one, state, page.changed),
      clients.rounds(one),
      element("div", { class: "pair", "data-key": "pair" }, coefficients(one, state, page.changed), settings(one)),
    ];
  }

  function heading(one, { pick, reportAddress }) {
    const sign = signs.ofRun(one.state);
    const least =
      formats.known(one.needed) && one.needed < one.clients ? `, at least ${formats.count(one.needed)}` : "";
    const started = one.started
      ? `started ${formats.started(one.started)} UTC${signs.isGoing(one) ? `, ${formats.ago(one.started)}` : ""}`
      : null;
    return element(
      "div",
      { class: "heading", "data-key": "heading" },
      element(
        "div",
        {},
        element(
          "div",
          { class: "title" },
          element("h1", {}, one.id),
          element("span", { class: `badge is-${sign}` }, signs.icon(sign), one.state),
        ),
        parts.dots(
          one.algorithm ? element("code", {}, one.algorithm) : null,
          formats.known(one.density) ? `density ${formats.density(one.density)}` : null,
          formats.known(one.clients) ? `${formats.plural(one.clients, "client")}${least}` : null,
          one.how,
          one.data,
          started,
        ),
      ),
      reportAddress
        ? element(
            "div",
            { class: "actions" },
            element("a", { class: "button", href: "#/", onclick: () => pick(one.id) }, "Compare with …"),
            element("a", { class: "button", href: reportAddress, download: true }, "report.html"),
          )
        : null,
    );
  }

  /** A run that is done says where its model is. */
  function next(one) {
    if (one.state !== "finished") return null;
    return element(
      "p",
      { class: "panel next", "data-key": "next" },
      element("span", {}, "The model is in"),
      element("code", {}, `${one.id}/model.safetensors`),
    );
  }

  function events(one) {
    const item = ({ time, sign, client, text }) =>
      element(
        "li",
        {},
        element("time", { datetime: time }, formats.time(time)),
        signs.icon(sign),
        element("span", {}, ofClient(client, text)),
      );
    const known = one.events || [];
    return parts.panel(
      "events",
      "events",
      parts.header("Events", element("span", { class: "end muted" }, "UTC, newest first")),
      element(
        "ol",
        { tabindex: "0", "aria-label": "Events" },
        known.length
          ? known.map(item)
          : element("li", { class: "muted none" }, "Nothing has happened beside the rounds."),
      ),
    );
  }

  /** The text of an event, in which its client's name stands out; one that does not name it is led by it. */
  function ofClient(client, text) {
    if (!client) return [text];
    const [before, ...after] = text.includes(client) ? text.split(client) : ["", ` ${text}`];
    return [before, element("b", {}, client), after.join(client)];
  }

  /** What the model has learned, where its inputs have names: the largest first, on one scale. */
  function coefficients(one, state, changed) {
    const all = one.coefficients || [];
    if (!all.length) return null;
    const largest = Math.max(...all.map(({ value }) => Math.abs(value)));
    const showAll = () => {
      state.allCoefficients = true;
      changed();
    };
    const { shown, more } = parts.shortened(all, AT_FIRST, state.allCoefficients, showAll, "coefficient");
    const row = ({ name, value }) => {
      const side = value < 0 ? "negative" : "positive";
      const width = `${((50 * Math.abs(value)) / largest).toFixed(1)}%`;
      return element(
        "tr",
        {},
        element("td", { class: "name-cell", title: name }, name),
        element("td", { class: "signed" }, element("span", { class: side }, element("i", { style: { width } }))),
        element("td", { class: "num" }, formats.score(value)),
      );
    };
    return parts.panel(
      "coefficients",
      "coefficients",
      parts.header(
        "Coefficients",
        element("span", { class: "end muted" }, `${formats.count(all.length)} that are not zero`),
      ),
      element("table", {}, element("tbody", {}, shown.map(row))),
      more,
    );
  }

  function settings(one) {
    const known = Object.entries(one.settings || {});
    if (!known.length) return null;
    const item = ([name, value]) =>
      element("li", {}, element("code", {}, name), " ", element("span", {}, String(value)));
    return parts.panel(
      "settings",
      "settings",
      element(
        "details",
        {},
        element("summary", {}, formats.plural(known.length, "setting")),
        element("ul", {}, known.map(item)),
      ),
    );
  }

  return { newState, view };
})();
