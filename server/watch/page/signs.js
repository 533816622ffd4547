"use strict";
/** The signs of states: a shape of index.html, and a colour that only repeats what the shape says. */
const signs = (() => {
  const OF_RUN = { live: "ok", waiting: "late", finished: "done", stopped: "stopped", failed: "failed" };
  const isGoing = ({ state }) => state === "live" || state === "waiting";
  const SHAPES = new Set(["ok", "late", "away", "done", "stopped", "failed", "info"]);
  const shapeOf = (sign) => (SHAPES.has(sign) ? sign : "info");

  /** An icon of a sign; without a label it is left out for those who listen, as a word stands beside it. */
  function icon(sign, label = null) {
    const shape = shapeOf(sign);
    const named = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
    return dom.element(
      "svg",
      { class: `icon is-${shape}`, viewBox: "0 0 12 12", ...named },
      dom.element("use", { href: `#shape-${shape}` }),
    );
  }

  /** The same shapes for a canvas, read from index.html, so that they are drawn in one place. */
  function onCanvas(context, sign, x, y, size, colour) {
    context.save();
    context.translate(x - size / 2, y - size / 2);
    context.scale(size / 12, size / 12);
    context.fillStyle = context.strokeStyle = colour;
    context.lineWidth = 1.8;
    for (const part of document.getElementById(`shape-${shapeOf(sign)}`).children) drawPart(context, part);
    context.restore();
  }

  function drawPart(context, part) {
    const path = new Path2D(part.getAttribute("d") || undefined);
    if (part.nodeName === "circle")
      path.arc(...["cx", "cy", "r"].map((name) => Number(part.getAttribute(name))), 0, 2 * Math.PI);
    if (part.classList.contains("outline")) context.stroke(path);
    else context.fill(path);
  }

  /** A colour of style.css, as it is now: light or dark. */
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const COLOURS = {
    ok: "ok",
    late: "late-fill",
    away: "away",
    done: "ok",
    stopped: "muted",
    failed: "away",
    info: "muted",
  };
  const colourOf = (sign) => colour(COLOURS[shapeOf(sign)]);

  return { isGoing, ofRun: (state) => OF_RUN[state] || "info", icon, onCanvas, colour, colourOf };
})();
