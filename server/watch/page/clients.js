"use strict";
/** The clients of a run: who needs attention first, what took their last round, and the strip of their last rounds. */
const clients = (() => {
  const { element } = dom;
  const PHASES = ["download", "train", "encode", "save", "upload"]; // in the order of time
  const GROUPS = { link: ["download", "upload"], machine: ["train", "encode", "save"] };
  const AT_FIRST = 25;
  const TROUBLE = new Set(["late", "away", "failed", "stopped"]);

  const legend = (label, ...items) =>
    element(
      "ul",
      { class: "legend end", "aria-label": label },
      items.map((item) => element("li", {}, item)),
    );
  const swatch = (kind) => element("i", { class: `swatch ${kind}` });

  const byName = (one, other) => one.name.localeCompare(other.name, "en", { numeric: true });

  /** Trouble first, as it came; the others by name, so that rows stay where they are from round to round. */
  function inOrder(rows) {
    const troubled = rows.filter((row) => TROUBLE.has(row.sign));
    return [...troubled, ...rows.filter((row) => !TROUBLE.has(row.sign)).sort(byName)];
  }

  /** The table; its bars share one scale and one order, so that they can be compared. */
  function table(run, state, changed) {
    const rows = inOrder(run.clients_table || []);
    if (!rows.length) return null;
    const scale = axes.secondsScale(Math.max(0.001, ...rows.map((row) => row.total || 0)));
    const showAll = () => {
      state.allClients = true;
      changed();
    };
    const { shown, more } = parts.shortened(rows, AT_FIRST, state.allClients, showAll, "client");
    return parts.panel(
      "clients",
      "clients",
      parts.header("Clients", tally(run.clients_counts), phasesLegend()),
      element(
        "table",
        {},
        element("thead", {}, head(scale)),
        element(
          "tbody",
          {},
          shown.map((row) => clientRow(row, scale, run, state)),
        ),
      ),
      more,
    );
  }

  function tally(counts) {
    const sign = { late: "late", away: "away", "put out": "away" };
    const items = Object.entries(counts || {}).filter(([, number]) => number);
    return element(
      "span",
      { class: "tally" },
      items.map(([word, number]) => parts.state(sign[word] || "ok", `${formats.count(number)} ${word}`)),
    );
  }

  function phasesLegend() {
    const items = Object.entries(GROUPS).flatMap(([group, phases]) => [
      element("b", {}, group),
      ...phases.map((phase) => [swatch(phase), phase]),
    ]);
    return legend("Phases of a round", ...items);
  }

  function head({ ticks }) {
    const scale = element(
      "span",
      { class: "scale", "aria-hidden": "true" },
      ticks.map((tick) => element("span", {}, tick)),
    );
    const column = (kind, title) => element("th", { class: kind }, title);
    return element(
      "tr",
      {},
      column("name-cell", "Client"),
      column("state-cell", "State"),
      element("th", { class: "phases" }, "Last round, by phase", scale),
      column("mostly", "Mostly"),
      column("num link", "Link"),
      column("num sent", "Sent"),
      column("num memory", "Memory"),
      column("num missed", "Missed"),
    );
  }

  function clientRow(row, scale, run, state) {
    const kinds = [row.sign === "late" ? "late-row" : "", state.pointed === row.name ? "pointed-row" : ""]
      .filter(Boolean)
      .join(" ");
    const past = formats.known(row.phases_round) && row.phases_round < run.round - 1;
    return element(
      "tr",
      { class: kinds || null, "data-key": row.name, "data-client": row.name },
      element("td", { class: "name-cell", title: row.name }, row.name),
      element("td", { class: "state-cell" }, parts.state(row.sign, row.state_text || row.state)),
      element("td", { class: past ? "phases past" : "phases" }, track(row, scale)),
      element(
        "td",
        { class: "mostly" },
        [row.mostly, past ? `round ${formats.count(row.phases_round)}` : ""].filter(Boolean).join(", "),
      ),
      element("td", { class: "num link" }, parts.quantity(formats.speed(row.link_bits_per_second))),
      element("td", { class: "num sent" }, parts.quantity(formats.bytes(row.sent_bytes))),
      element("td", { class: "num memory" }, memory(row)),
      element(
        "td",
        { class: row.missed && TROUBLE.has(row.sign) ? "num missed is-away" : "num missed" },
        formats.count(row.missed),
      ),
    );
  }

  /** Of the machine; and of its GPU, where the client computes on one. */
  function memory(row) {
    const megabytes = (number) => parts.quantity({ value: String(Math.round(number)), unit: "MB" });
    const own = formats.known(row.memory_mb) ? megabytes(row.memory_mb) : parts.quantity(formats.bytes(null));
    return formats.known(row.vram_mb) ? [own, " + GPU ", megabytes(row.vram_mb)] : own;
  }

  function track({ phases, total }, { top, ticks }) {
    const seconds = phases || {};
    const part = (phase) => {
      const title = `${phase} ${formats.duration(seconds[phase])}`;
      return element("i", { class: phase, title, style: { width: `${((100 * seconds[phase]) / top).toFixed(2)}%` } });
    };
    const stack = element("span", { class: "stack" }, PHASES.filter((phase) => seconds[phase] > 0).map(part));
    const lines = ticks.slice(0, -1).map(() => element("i", {}));
    return element(
      "span",
      { class: "track" },
      element("span", { class: "ground" }, element("span", { class: "lines" }, lines), stack),
      element("span", { class: "total" }, formats.known(total) ? formats.duration(total) : "–"),
    );
  }

  /** Client by round, the newest at the right. */
  function rounds(run) {
    const content = run.strip;
    if (!content || !content.clients.length) return null;
    const worst = (one, other) => other.late + other.missed - one.late - one.missed || byName(one, other);
    const shown = [...content.clients].sort(worst);
    const nouns = ["counted", "late", "missed"].filter((noun) => shown.some((one) => one[noun]));
    const sum = (one, noun) =>
      element("span", {}, one[noun] ? [element("b", {}, formats.count(one[noun])), ` ${noun}`] : null);
    return parts.panel(
      "strip",
      "strip-panel",
      parts.header(
        "Last rounds",
        element("span", { class: "pointed muted", drawn: () => {} }),
        stripLegend(content.bounds),
      ),
      element(
        "div",
        { class: "strip" },
        element(
          "ol",
          { class: "names" },
          shown.map((one) => element("li", { title: one.name }, signs.icon(one.sign), element("span", {}, one.name))),
        ),
        element("div", { class: "cells", drawn: (host) => strip.show(host, { ...content, clients: shown }) }),
        element(
          "ol",
          { class: "sums" },
          shown.map((one) =>
            element(
              "li",
              {},
              nouns.map((noun) => sum(one, noun)),
            ),
          ),
        ),
      ),
    );
  }

  function stripLegend(bounds) {
    const heats = [1, 2, 3, 4].map((heat) => [swatch(`heat-${heat}`), strip.heatText(bounds, heat)]);
    return legend("Shades", ...heats, [swatch("late-cell"), "late"], [swatch("missed-cell"), "missed"]);
  }

  return { table, rounds };
})();
