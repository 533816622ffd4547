"use strict";
/** Where the data come from: the program `watch`, which may go and come back, or the page itself if it is a report. */
const feed = (() => {
  const AGAIN_MILLISECONDS = 2000;
  const inside = document.getElementById("embedded");
  const embedded = inside ? JSON.parse(inside.textContent) : null;

  const address = (path, ids) => (ids.length ? `${path}?${new URLSearchParams(ids.map((id) => ["id", id]))}` : path);

  /** Ask once; an answer that is none of ours is an error that says why. */
  async function ask(path, ids) {
    const answer = await fetch(address(path, ids));
    const body = await answer.json().catch(() => ({}));
    if (!answer.ok) throw Object.assign(new Error(body.detail || `watch answers ${answer.status}`), { refused: true });
    return body;
  }

  /**
   * Hear of every change, the state of now first, until the returned function is called.
   * @param {?string} id of a run; null for the list of all
   * @param {{received: function(Object): void, gone: function(): void, refused: function(string): void}} listener
   */
  function follow(id, listener) {
    const ids = id === null ? [] : [id];
    let source = null;
    let timer = null;
    const open = () => {
      source = new EventSource(address("/api/live", ids));
      source.onmessage = (event) => listener.received(JSON.parse(event.data));
      source.onerror = () => {
        source.close(); // its own way to come back gives up at some errors
        ask(id === null ? "/api/runs" : "/api/run", ids).then(again, (error) =>
          error.refused ? listener.refused(error.message) : gone(),
        );
      };
    };
    const gone = () => {
      listener.gone();
      again();
    };
    const again = () => {
      timer = source ? setTimeout(open, AGAIN_MILLISECONDS) : null;
    };
    open();
    return () => {
      source.close();
      source = null;
      clearTimeout(timer);
    };
  }

  return { embedded, address, ask, follow };
})();
