"use strict";
/** The view of all runs: filter, sort, tick some to compare. */
const list = (() => {
  const { element } = dom;
  const STATES = ["waiting", "live", "failed", "stopped", "finished"]; // trouble first

  const COLUMNS = [
    { name: "run", title: "Run", kind: "run", of: (run) => run.id },
    { name: "state", title: "State", kind: "state-cell", of: (run) => STATES.indexOf(run.state) },
    { name: "method", title: "Method", kind: "method", of: (run) => run.algorithm || "" },
    { name: "clients", title: "Clients", kind: "num clients-count", of: (run) => run.clients },
    { name: "round", title: "Round", kind: "num round", of: (run) => run.round },
    { name: "score", title: "Score", kind: "num score", of: (run) => run.score },
    { name: null, title: "", kind: "sparkline" },
    { name: "sent", title: "Sent, per client", kind: "num sent", of: (run) => run.sent_bytes_per_client },
    { name: "started", title: "Started, UTC", kind: "num started", of: (run) => run.started || "" },
  ];

  const newState = () => ({ filter: "", sort: { by: "started", descending: true }, picked: new Set() });

  /**
   * @param {Object[]} runs summaries
   * @param {{filter: string, sort: {by: string, descending: boolean}, picked: Set<string>}} state
   * @param {function(): void} changed called after a change of the state
   */
  function view(runs, state, changed) {
    const shown = sorted(
      runs.filter((run) => fits(run, state.filter)),
      state.sort,
    );
    return [heading(runs, state, changed), runs.length ? table(shown, state, changed) : nothing()];
  }

  const fits = (run, filter) =>
    filter
      .toLowerCase()
      .split(/\s+/)
      .every((word) => searched(run).includes(word));
  const searched = (run) => [run.id, run.name, run.algorithm, run.task, run.state, run.how].join(" ").toLowerCase();

  function sorted(runs, { by, descending }) {
    const { of } = COLUMNS.find(({ name }) => name === by);
    const order = (one, other) => {
      const [left, right] = [of(one), of(other)];
      if (left === right) return one.id < other.id ? -1 : 1;
      if (left === null || right === null) return left === null ? 1 : -1; // the unknown comes last
      return (left < right ? -1 : 1) * (descending ? -1 : 1);
    };
    return [...runs].sort(order);
  }

  function heading(runs, state, changed) {
    const counts = STATES.map((name) => [name, runs.filter((run) => run.state === name).length]).filter(
      ([, number]) => number,
    );
    const filter = (event) => {
      state.filter = event.target.value;
      changed();
    };
    return element(
      "div",
      { class: "heading", "data-key": "heading" },
      element("div", {}, element("h1", {}, "Runs"), parts.dots(...counts.map(([name, number]) => `${number} ${name}`))),
      element(
        "div",
        { class: "actions" },
        element("input", {
          class: "filter",
          type: "search",
          placeholder: "Filter by name, method, task",
          "aria-label": "Filter runs",
          oninput: filter,
        }),
        compareButton(runs, state),
      ),
    );
  }

  function compareButton(runs, { picked }) {
    const ids = runs.map(({ id }) => id).filter((id) => picked.has(id));
    const enough = ids.length > 1;
    const href = enough ? `#/compare/${ids.map(encodeURIComponent).join(",")}` : null;
    const text = enough ? `Compare ${ids.length}` : "Tick runs to compare";
    return element(
      "a",
      { class: enough ? "button primary" : "button idle", href, "aria-disabled": enough ? null : "true" },
      text,
    );
  }

  function table(runs, state, changed) {
    const values = runs.some((run) => run.sent_kind === "values");
    return parts.panel(
      "runs",
      "runs",
      element(
        "table",
        {},
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            element("th", { class: "pick" }, element("span", { class: "hidden-text" }, "Compare")),
            COLUMNS.map((column) => head(column, state, changed)),
          ),
        ),
        element(
          "tbody",
          {},
          runs.map((run) => row(run, state, changed)),
        ),
      ),
      element(
        "footer",
        {},
        runs.length ? "" : "No run fits the filter. ",
        "Sent: encoded model bytes.",
        values ? " Values only: nothing was encoded, and 4 bytes are counted for each nonzero value." : "",
      ),
    );
  }

  function head({ name, title, kind }, state, changed) {
    if (!name) return element("th", { class: kind });
    const on = state.sort.by === name;
    const sort = () => {
      state.sort = { by: name, descending: on ? !state.sort.descending : kind.startsWith("num") };
      changed();
    };
    const arrow = on ? element("span", { "aria-hidden": "true" }, state.sort.descending ? " ↓" : " ↑") : null;
    const order = on ? (state.sort.descending ? "descending" : "ascending") : null;
    return element(
      "th",
      { class: kind, "aria-sort": order },
      element("button", { class: "sort", type: "button", onclick: sort }, title, arrow),
    );
  }

  function row(run, state, changed) {
    const picked = state.picked.has(run.id);
    return element(
      "tr",
      { class: picked ? "picked" : null, "data-key": run.id },
      pickCell(run, picked, state, changed),
      nameCell(run),
      stateCell(run),
      methodCell(run),
      numberCells(run),
    );
  }

  function pickCell(run, picked, state, changed) {
    const pick = (event) => {
      state.picked[event.target.checked ? "add" : "delete"](run.id);
      changed();
    };
    return element(
      "td",
      { class: "pick" },
      element("input", { type: "checkbox", checked: picked, "aria-label": `Compare ${run.id}`, onchange: pick }),
    );
  }

  function nameCell(run) {
    return element(
      "td",
      { class: "run" },
      element("a", { href: `#/run/${encodeURIComponent(run.id)}`, title: run.id }, run.id),
      element("small", {}, [run.task, run.how].filter(Boolean).join(", ")),
    );
  }

  function stateCell(run) {
    const sign = signs.ofRun(run.state);
    return element(
      "td",
      { class: "state-cell" },
      parts.state(sign, run.state),
      run.state_text ? element("small", { title: run.state_text }, run.state_text) : null,
    );
  }

  function methodCell(run) {
    const dense = run.density === 1 ? ", dense model" : "";
    const density = formats.known(run.density) ? `density ${formats.density(run.density)}${dense}` : "";
    return element("td", { class: "method" }, element("code", {}, run.algorithm || "–"), element("small", {}, density));
  }

  function numberCells(run) {
    const going = signs.isGoing(run);
    const rounds = [
      element("span", {}, formats.count(run.round)),
      element("span", { class: "muted" }, ` / ${formats.count(run.rounds)}`),
    ];
    return [
      element("td", { class: "num clients-count" }, formats.count(run.clients)),
      element("td", { class: "num round" }, rounds, parts.bar(run.round / run.rounds, going ? "" : "quiet")),
      element("td", { class: "num score" }, formats.score(run.score), element("small", {}, run.metric || "")),
      element("td", { class: "sparkline" }, parts.spark(run.spark, going ? "" : "quiet")),
      element(
        "td",
        { class: "num sent" },
        parts.quantity(formats.bytes(run.sent_bytes_per_client)),
        run.sent_kind === "values" ? element("small", {}, "values only") : null,
      ),
      element("td", { class: "num started" }, formats.started(run.started)),
    ];
  }

  function nothing() {
    return parts.panel(
      "nothing",
      "empty",
      element("h2", {}, "There is no run in this folder yet"),
      element("p", {}, "Start one, and it appears here:"),
      parts.command("proxskip-server local digits --clients 4"),
    );
  }

  return { newState, view };
})();
