"use strict";
/** The page: which view the address asks for, what it shows, and how fresh that is. */
(() => {
  const { element } = dom;
  const TICK_MILLISECONDS = 1000; // how often the clocks on the page move

  const states = { list: list.newState(), run: run.newState(), compare: compare.newState() };
  const now = { view: "list", id: null, ids: [], data: null, refused: null, gone: false, lastRead: null };
  const visited = { run: null, ids: [] }; // what the tabs lead back to
  let stop = () => {};

  // ------------------------------------------------------------------------------------------------ where we are

  function route() {
    const [, view, rest] = location.hash.match(/^#\/(run|compare)\/(.+)$/) || [];
    if (view === "run") return { view, id: decodeURIComponent(rest), ids: [] };
    if (view === "compare") return { view, id: null, ids: rest.split(",").map(decodeURIComponent) };
    return { view: "list", id: null, ids: [] };
  }

  function go() {
    if (location.hash && !location.hash.startsWith("#/")) return; // such as the link that skips the top
    stop();
    Object.assign(now, route(), { data: null, refused: null, gone: false });
    if (now.view === "run" && (!visited.run || visited.run.id !== now.id))
      Object.assign(visited, { run: { id: now.id, state: null } });
    if (now.view === "compare") visited.ids = now.ids;
    Object.assign(states.run, { pointed: null, trouble: null });
    states.compare.level = null;
    scrollTo(0, 0);
    stop = feed.embedded ? showEmbedded() : followView();
    draw();
  }

  /** A report shows what is in it. */
  function showEmbedded() {
    const { runs, compare: compared } = feed.embedded;
    const found = { list: { runs }, run: runs.find(({ id }) => id === now.id), compare: compared }[now.view];
    now.data = found || null;
    now.refused = found ? null : "This is not in the report.";
    return () => {};
  }

  function followView() {
    const view = location.hash;
    const mine = (act) => (value) => {
      if (location.hash === view) {
        act(value);
        draw();
      }
    };
    const listener = {
      received: mine((data) => received(data)),
      gone: mine(() => {
        now.gone = true;
      }),
      refused: mine((why) => {
        now.refused = why;
      }),
    };
    return now.view === "compare" ? followCompared(listener) : feed.follow(now.id, listener);
  }

  /** A comparison is asked for anew when one of its runs has got further. */
  function followCompared(listener) {
    let before = null;
    return feed.follow(null, {
      ...listener,
      received: ({ runs }) => {
        const state = JSON.stringify(
          runs.filter(({ id }) => now.ids.includes(id)).map(({ id, round, state: word }) => [id, round, word]),
        );
        if (state === before) return;
        before = state;
        feed
          .ask("/api/compare", now.ids)
          .then(listener.received, (error) => (error.refused ? listener.refused(error.message) : listener.gone()));
      },
    });
  }

  function received(data) {
    Object.assign(now, { data, gone: false, refused: null, lastRead: new Date().toISOString() });
    if (now.view === "run") visited.run = { id: data.id, state: data.state };
  }

  // ------------------------------------------------------------------------------------------------ what is shown

  function draw() {
    dom.show(document.getElementById("tabs"), tabs());
    dom.show(document.getElementById("feed"), freshness());
    dom.show(
      document.getElementById("main"),
      element("div", { class: "view", "data-key": location.hash || "#/" }, content()),
    );
    document.title = [titleOf(), "Sparse-ProxSkip watch"].filter(Boolean).join(" · ");
  }

  function content() {
    if (now.data && now.view === "list") return list.view(now.data.runs, states.list, draw);
    if (now.data && now.view === "run")
      return run.view(now.data, states.run, {
        changed: draw,
        pick: (id) => states.list.picked.add(id),
        reportAddress: feed.embedded ? null : feed.address("/report", [now.id]),
      });
    if (now.data) return compare.view(now.data, states.compare, { changed: draw, choosing: !feed.embedded });
    if (now.refused) return trouble("There is nothing to show", now.refused);
    return now.gone
      ? trouble("watch does not answer", "This page tries again every two seconds.")
      : element("p", { class: "muted" }, "Reading …");
  }

  const trouble = (title, text) =>
    parts.panel(
      "trouble",
      "empty",
      element("h2", {}, title),
      element("p", {}, text),
      element("a", { class: "button", href: "#/" }, "All runs"),
    );

  function titleOf() {
    if (now.view === "run" && now.data)
      return `${now.id}, round ${formats.count(now.data.round)}${now.data.state === "waiting" ? ", waiting" : ""}`;
    return now.view === "compare" && now.data ? now.data.title : null;
  }

  function tabs() {
    const tab = (view, href, ...words) =>
      element("a", { "data-key": view, href, "aria-current": now.view === view ? "page" : null }, ...words);
    const { run: one, ids } = visited;
    const trouble = one && one.state === "waiting" ? signs.icon("late", "waiting") : null;
    return [
      tab("list", "#/", "Runs"),
      one
        ? tab("run", `#/run/${encodeURIComponent(one.id)}`, element("span", { class: "tab-name" }, one.id), trouble)
        : null,
      ids.length ? tab("compare", `#/compare/${ids.map(encodeURIComponent).join(",")}`, "Compare") : null,
    ];
  }

  /** How fresh what is shown is; when watch is gone it stays, and says so. */
  function freshness() {
    const long = (text) => element("span", { class: "long" }, text);
    if (feed.embedded) return [signs.icon("done"), "report", long(", as it was when it was written")];
    const read = now.lastRead ? `last read ${formats.time(now.lastRead)} UTC` : "nothing read yet";
    if (now.gone)
      return [
        signs.icon("away"),
        element("span", { class: "is-away" }, "watch is gone"),
        long(` · ${read} · trying again`),
      ];
    return [signs.icon("ok"), "live", long(` · ${read} · read only`)];
  }

  addEventListener("hashchange", go);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    chart.repaint();
    draw();
  });
  if (feed.embedded && !location.hash) history.replaceState(null, "", firstOfReport(feed.embedded));
  if (!feed.embedded)
    setInterval(() => {
      if (now.data && !document.hidden) draw();
    }, TICK_MILLISECONDS);
  go();

  function firstOfReport({ runs, compare: compared }) {
    if (compared) visited.run = { id: runs[0].id, state: runs[0].state };
    const ids = runs.map(({ id }) => encodeURIComponent(id));
    return compared ? `#/compare/${ids.join(",")}` : `#/run/${ids[0]}`;
  }
})();
