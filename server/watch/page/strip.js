"use strict";
/** The last rounds of each client as a strip of cells that ends at now: one canvas, however many there are. */
const strip = (() => {
  const ROW = 18;
  const AXIS = 18;
  const NARROWEST_CELL = 3;
  const WIDEST_CELL = 14;
  const TICK_ROOM = 60;
  const WORDS = { L: "late", M: "missed", ".": "nothing is known" };
  const contents = new WeakMap(); // of a host: the strip that it shows

  /** Draw in a host of any width; what does not fit is left out at the old end. */
  function show(host, content) {
    if (!contents.has(host)) build(host);
    contents.set(host, content);
    paint(host);
  }

  function build(host) {
    host.append(
      dom.element("canvas", {
        role: "img",
        "aria-label": "The last rounds of each client; the numbers stand beside it",
      }),
    );
    new ResizeObserver(() => paint(host)).observe(host);
    host.onpointermove = (event) => tell(host, event.offsetX, event.offsetY);
    host.onpointerleave = () => tell(host, -1, -1);
  }

  /** How wide a cell is, and how many rounds fit. */
  function layout(host) {
    const { first_round: first, last_round: last, clients } = contents.get(host);
    const width = host.clientWidth;
    const rounds = Math.max(1, Math.min(last - first + 1, Math.floor(width / NARROWEST_CELL)));
    const cell = Math.min(WIDEST_CELL, width / rounds);
    return {
      width,
      height: clients.length * ROW + AXIS,
      rounds,
      cell,
      left: width - rounds * cell,
      first: last - rounds + 1,
      last,
    };
  }

  function paint(host) {
    const canvas = host.firstChild;
    const place = layout(host);
    if (!place.width) return;
    canvas.width = Math.round(place.width * devicePixelRatio);
    canvas.height = Math.round(place.height * devicePixelRatio);
    Object.assign(canvas.style, { width: `${place.width}px`, height: `${place.height}px` });
    const context = canvas.getContext("2d");
    context.scale(devicePixelRatio, devicePixelRatio);
    contents
      .get(host)
      .clients.forEach(({ cells }, row) => paintRow(context, cells.slice(-place.rounds), row * ROW, place));
    paintAxis(context, place);
  }

  function paintRow(context, cells, top, { left, cell, rounds }) {
    const colours = { L: signs.colour("late-fill"), M: signs.colour("away") };
    for (const heat of "1234") colours[heat] = signs.colour(`heat-${heat}`);
    const gap = cell > 3.5 ? 1 : 0.5;
    [...cells].forEach((kind, index) => {
      const x = left + (rounds - cells.length + index) * cell;
      context.fillStyle = colours[kind] || "transparent";
      if (kind === "M") context.fillRect(x, top + ROW / 2 - 1, cell, 2);
      else if (kind === "L") context.fillRect(x, top + 1, Math.max(cell - gap, 2), ROW - 2);
      else context.fillRect(x, top + 4, cell - gap, ROW - 8);
    });
  }

  function paintAxis(context, { height, left, cell, first, last, rounds }) {
    const step = [1, 2, 5, 10, 20, 25, 50, 100].find((one) => one * cell >= TICK_ROOM) || 200;
    context.fillStyle = signs.colour("muted");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    for (let round = Math.ceil(first / step) * step; round <= last; round += step) {
      const x = left + (round - first + 0.5) * cell;
      if (x > left + 16 && x < left + rounds * cell - 16) context.fillText(formats.count(round), x, height - 4);
    }
  }

  function tell(host, x, y) {
    const { clients, bounds } = contents.get(host);
    const place = layout(host);
    const client = clients[Math.floor(y / ROW)];
    const at = Math.floor((x - place.left) / place.cell);
    const kind =
      client && at >= 0
        ? client.cells.slice(-place.rounds)[at - (place.rounds - Math.min(place.rounds, client.cells.length))]
        : undefined;
    const text = kind
      ? `${client.name}, round ${formats.count(place.first + at)}: ${WORDS[kind] || heatText(bounds, Number(kind))}`
      : "";
    host.closest(".panel").querySelector(".pointed").textContent = text;
  }

  /** What a shade means: under 0.1 s, 0.1 to 0.2 s and so on. */
  function heatText(bounds, heat) {
    const number = (value) => Number(value.toPrecision(2));
    if (heat === 1) return `under ${number(bounds[0])} s`;
    return bounds.length >= heat
      ? `${number(bounds[heat - 2])} to ${number(bounds[heat - 1])} s`
      : `over ${number(bounds[heat - 2])} s`;
  }

  return { show, heatText };
})();
