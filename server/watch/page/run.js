"use strict";
/** The view of one run: how it does, what it waits for, its score, events and clients. */
const run = (() => {
  const { element } = dom;
  const ZERO = 1e-5; // a relative sum of control variates below it is rounding
  const BANNER_SIGNS = { diverged: "failed", "control sum": "failed", stopped: "stopped" };
  const AT_FIRST = 20;
  const CHART_HEIGHT = 300;

  const newState = () => ({ axis: "round", allClients: false, allCoefficients: false, pointed: null, trouble: null });
  const going = (one) => one.state === "live" || one.state === "waiting";

  /**
   * @param {Object} one a run
   * @param {{axis: string, allClients: boolean, allCoefficients: boolean, pointed: ?string,
   *     trouble: ?string}} state what was last shown in the banner is its trouble
   * @param {{changed: function(): void, pick: function(string): void, reportAddress: ?string}} page
   */
  function view(one, state, page) {
    return [
      heading(one, page),
      figures(one),
      one.banner ? banner(one, state, page.changed) : overcome(one, state),
      next(one),
      element("div", { class: "split", "data-key": "split" }, scorePanel(one, state, page.changed), events(one)),
      clients.table(one, state, page.changed),
      clients.rounds(one),
      element("div", { class: "pair", "data-key": "pair" }, coefficients(one, state, page.changed), settings(one)),
    ];
  }

  // ------------------------------------------------------------------------------------------------ its state

  function heading(one, { pick, reportAddress }) {
    const sign = signs.ofRun(one.state);
    const least = formats.known(one.needed) && one.needed < one.clients ? `, at least ${formats.count(one.needed)}` : "";
    const started = one.started ? `started ${formats.started(one.started)} UTC${going(one) ? `, ${formats.ago(one.started)}` : ""}` : null;
    return element(
      "div",
      { class: "heading", "data-key": "heading" },
      element(
        "div",
        {},
        element("div", { class: "title" }, element("h1", {}, one.id), element("span", { class: `badge is-${sign}` }, signs.icon(sign), one.state)),
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

  function figures(one) {
    return element("dl", { class: "panel figures", "data-key": "figures" }, scoreFigure(one), roundFigure(one), timeFigure(one), sentFigure(one), modelFigure(one), sumFigure(one));
  }

  const figure = (key, title, value, note) =>
    element("div", { "data-key": key }, element("dt", {}, title), element("dd", { class: "value" }, value), element("dd", { class: "note", title: typeof note === "string" ? note : null }, note));

  function scoreFigure(one) {
    const best = one.best && formats.known(one.best.score) ? `best ${formats.score(one.best.score)} in round ${formats.count(one.best.round)}` : "not measured yet";
    return figure("score", one.metric || "Score", [formats.score(one.score), parts.spark(one.spark)], best);
  }

  function roundFigure(one) {
    const rounds = element("span", {}, formats.count(one.round), element("span", { class: "of" }, ` / ${formats.count(one.rounds)}`));
    const pace = formats.known(one.seconds_per_round) ? `${formats.duration(one.seconds_per_round)} per round` : "";
    return figure("round", "Round", [rounds, parts.bar(one.round / one.rounds, going(one) ? "" : "quiet")], pace);
  }

  function timeFigure(one) {
    const ran = formats.duration(one.seconds_running);
    if (!going(one)) return figure("time", one.state === "finished" ? "Took" : "Ran for", ran, "");
    const waits = one.banner && one.banner.clients && one.banner.clients.length === 1 ? `once ${one.banner.clients[0]} answers` : `running for ${ran}`;
    return figure("time", "Time left", formats.duration(one.seconds_left), waits);
  }

  function sentFigure(one) {
    const also = [["wire", one.wire_bytes_per_client], ["got", one.got_bytes_per_client]].filter(([, number]) => formats.known(number));
    const note = one.sent_kind === "values" ? ["values only"] : [];
    return figure("sent", "Sent, per client", element("span", {}, parts.quantity(formats.bytes(one.sent_bytes_per_client))), [...note, ...also.map(([word, number]) => `${word} ${formats.text(formats.bytes(number))}`)].join(", "));
  }

  function modelFigure(one) {
    const kept = formats.known(one.weights_kept) ? one.weights_kept : one.weights;
    const share = formats.known(one.weights_kept) && one.weights ? `weights kept, density ${formats.density(one.weights_kept / one.weights)}` : "weights";
    return figure("model", "Model", element("span", {}, formats.count(kept), element("span", { class: "of" }, ` / ${formats.count(one.weights)}`)), share);
  }

  function sumFigure(one) {
    if (!formats.known(one.control_sum)) return figure("sum", "Sum of h", "–", one.how === "deployed" ? "not audited" : "this method has none");
    const zero = Math.abs(one.control_sum) <= ZERO;
    return figure("sum", "Sum of h", formats.power(one.control_sum), parts.state(zero ? "done" : "late", zero ? "zero up to rounding" : "not zero"));
  }

  function banner({ banner: { kind, title, text, clients: names, deadline }, command }, state, changed) {
    const sign = BANNER_SIGNS[kind] || "late";
    state.trouble = title;
    const point = (name) => { state.pointed = name; changed(); scrollToClient(name); };
    return element(
      "div",
      { class: `banner is-${sign}-banner`, role: "status", "data-key": "banner" },
      signs.icon(sign),
      element("div", { class: "words" }, element("p", {}, element("strong", {}, withNames(title, names, point))), text ? element("p", {}, withCommand(text, command, (words) => withNames(words, names, point))) : null),
      deadline ? countdown(deadline) : null,
    );
  }

  /** Trouble that is over keeps its place: what is below does not jump each time that a run waits for a moment. */
  function overcome(one, { trouble }) {
    if (!trouble || !going(one)) return null;
    return element("div", { class: "banner is-past-banner", role: "status", "data-key": "banner" }, signs.icon("done"), element("div", { class: "words" }, element("p", {}, "The run goes on."), element("p", { class: "muted" }, `It is over: ${trouble}`)));
  }

  function scrollToClient(name) {
    const row = [...document.querySelectorAll("tr[data-client]")].find((one) => one.dataset.client === name);
    if (row) row.scrollIntoView({ block: "center", behavior: "smooth" });
  }

  /** A text in which the names of clients lead to their rows. */
  function withNames(text, names, point) {
    const name = (names || []).filter((one) => one && text.includes(one)).sort((one, other) => other.length - one.length)[0];
    if (!name) return [text];
    const [before, ...after] = text.split(name);
    const others = names.filter((one) => one !== name);
    return [...withNames(before, others, point), element("button", { class: "name-link", type: "button", onclick: () => point(name) }, name), ...withNames(after.join(name), others, point)];
  }

  /** A text in which the command that goes on can be taken along. */
  function withCommand(text, command, written) {
    const [before, ...after] = command ? text.split(command) : [text];
    return after.length ? [...written(before), parts.command(command), ...written(after.join(command))] : written(text);
  }

  function countdown({ ends, seconds }) {
    const left = Math.max(0, (Date.parse(ends) - Date.now()) / 1000);
    const words = element("span", {}, element("span", {}, "deadline"), element("span", {}, left > 0 ? `in ${formats.duration(Math.ceil(left))}` : "now"));
    return element("div", { class: "deadline" }, words, parts.bar(1 - left / seconds));
  }

  /** A run that is done says where its model is. */
  function next(one) {
    if (one.state !== "finished") return null;
    return element("p", { class: "panel next", "data-key": "next" }, element("span", {}, "The model is in"), element("code", {}, `${one.id}/model.safetensors`));
  }

  // ------------------------------------------------------------------------------------------------ its score

  function scorePanel(one, state, changed) {
    const options = Object.entries(axes.KINDS).map(([kind, { option }]) => [kind, option]);
    const choose = (kind) => { state.axis = kind; changed(); };
    return parts.panel(
      "score",
      "score-panel",
      parts.header(one.metric || "Score", parts.choice({ name: "run-axis", legend: "Horizontal axis", before: "against", options, chosen: state.axis, choose })),
      element("div", { class: "chart", role: "img", "data-key": "chart", drawn: (host) => chart.show(host, picture(one, state.axis)) }),
    );
  }

  function picture(one, kind) {
    const curve = { name: one.id, label: `${one.algorithm || "score"} ${formats.score(one.score)}`, colour: "ours", dash: [], x: one.curve[kind], y: one.curve.score };
    return {
      key: `${one.id} ${kind}`,
      kind,
      title: axes.KINDS[kind].title(one.sent_kind),
      height: CHART_HEIGHT,
      curves: [curve],
      range: rangeOf(one, kind),
      marks: (one.marks || []).map((mark) => ({ x: mark[kind], sign: mark.sign, text: mark.text })).filter((mark) => formats.known(mark.x)),
      level: null,
      band: kind === "time" ? waitingBand(one) : null,
      direct: true,
      readout: (place, marks) => readout(one, kind, place, marks),
      describe: `${one.metric} against ${axes.KINDS[kind].option}: ${formats.score(one.score)} in round ${one.round}`,
    };
  }

  function rangeOf(one, kind) {
    if (kind === "sent") return null;
    const last = one.curve[kind][one.curve[kind].length - 1] || 0;
    if (kind === "round") return [0, Math.max(last, going(one) ? one.rounds || 0 : 0, 1)];
    return [0, Math.max(last, (one.seconds_running || 0) + (going(one) ? one.seconds_left || 0 : 0), 1)];
  }

  function waitingBand(one) {
    const from = one.curve.time[one.curve.time.length - 1];
    const to = one.seconds_running;
    if (one.state !== "waiting" || !formats.known(from) || !(to > from)) return null;
    return { from, to, text: `waiting ${formats.duration(to - from)}` };
  }

  function readout(one, kind, place, marks) {
    if (marks.length) return marks.slice(0, 3).map((mark) => element("span", {}, signs.icon(mark.sign), " ", mark.text));
    const index = place === null ? -1 : one.curve[kind].indexOf(place);
    if (index < 0) return [element("span", {}, one.marks && one.marks.length ? "Point at the curve for its numbers, at a sign for what happened." : "Point at the curve for its numbers.")];
    const { round, time, sent, score } = one.curve;
    const item = (word, value) => element("span", {}, word, " ", element("b", {}, value));
    return [
      item("round", formats.count(round[index])),
      item(one.metric || "score", formats.score(score[index])),
      formats.known(time[index]) ? item("after", formats.duration(time[index])) : null,
      formats.known(sent[index]) ? item("sent", formats.text(formats.bytes(sent[index]))) : null,
    ];
  }

  // ------------------------------------------------------------------------------------------------ beside it

  function events(one) {
    const item = ({ time, sign, client, text }) => element("li", {}, element("time", { datetime: time }, formats.time(time)), signs.icon(sign), element("span", {}, ofClient(client, text)));
    const known = one.events || [];
    return parts.panel(
      "events",
      "events",
      parts.header("Events", element("span", { class: "end muted" }, "UTC, newest first")),
      element("ol", { tabindex: "0", "aria-label": "Events" }, known.length ? known.map(item) : element("li", { class: "muted none" }, "Nothing has happened beside the rounds.")),
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
    const showAll = () => { state.allCoefficients = true; changed(); };
    const { shown, more } = parts.shortened(all, AT_FIRST, state.allCoefficients, showAll, "coefficient");
    const row = ({ name, value }) => {
      const side = value < 0 ? "negative" : "positive";
      const width = `${((50 * Math.abs(value)) / largest).toFixed(1)}%`;
      return element("tr", {}, element("td", { class: "name-cell", title: name }, name), element("td", { class: "signed" }, element("span", { class: side }, element("i", { style: { width } }))), element("td", { class: "num" }, formats.score(value)));
    };
    return parts.panel("coefficients", "coefficients", parts.header("Coefficients", element("span", { class: "end muted" }, `${formats.count(all.length)} that are not zero`)), element("table", {}, element("tbody", {}, shown.map(row))), more);
  }

  function settings(one) {
    const known = Object.entries(one.settings || {});
    if (!known.length) return null;
    const item = ([name, value]) => element("li", {}, element("code", {}, name), " ", element("span", {}, String(value)));
    return parts.panel("settings", "settings", element("details", {}, element("summary", {}, formats.plural(known.length, "setting")), element("ul", {}, known.map(item))));
  }

  return { newState, view, readout };
})();
