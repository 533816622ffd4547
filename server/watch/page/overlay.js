"use strict";
/** What a chart has beside its curves: a band behind them; a level, signs of events, dots and labels over them. */
const overlay = (() => {
  const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
  const STRONG = `600 ${FONT}`;
  const MARK_PIXELS = 11;
  const LABEL_ROOM = 16;
  const measuring = document.createElement("canvas").getContext("2d");

  const widthOf = (text, font) => {
    measuring.font = font;
    return Math.ceil(measuring.measureText(text).width);
  };

  /** Of several curves some end at the right, where their names need room; one has room of its own. */
  function roomAtRight({ direct, curves }) {
    const names = direct && curves.length > 1 ? curves.map(({ label }) => widthOf(label, STRONG)) : [];
    return LABEL_ROOM + Math.max(0, ...names);
  }

  /** Draw with the plot's corner as origin, in pixels of the page. */
  function inPlot(made, draw) {
    const context = made.ctx;
    context.save();
    context.translate(made.bbox.left, made.bbox.top);
    context.scale(devicePixelRatio, devicePixelRatio);
    context.textBaseline = "middle";
    draw(context);
    context.restore();
  }

  const sizeOf = (made) => ({ width: made.bbox.width / devicePixelRatio, height: made.bbox.height / devicePixelRatio });
  const placeOf = (made, x, y) => [made.valToPos(x, "x"), made.valToPos(y, "y")];

  /** A stretch of the axis: how long a run has been waiting. */
  function under(made, context, { band }) {
    if (!band) return;
    const { height } = sizeOf(made);
    const [from, to] = [made.valToPos(band.from, "x"), made.valToPos(band.to, "x")];
    context.fillStyle = signs.colour("late-soft");
    context.fillRect(from, 0, to - from, height);
    context.fillStyle = signs.colour("late-fill");
    context.fillRect(to - 1.5, 0, 1.5, height);
    context.font = FONT;
    context.fillStyle = signs.colour("late");
    context.textAlign = "right";
    if (to - from > widthOf(band.text, FONT) + 12) context.fillText(band.text, to - 7, height - 32);
  }

  function over(made, context, picture) {
    if (picture.level) drawLevel(made, context, picture.level);
    for (const mark of picture.marks) drawMark(made, context, mark);
    const tags = [...levelTags(made, picture), ...endTags(made, picture)];
    for (const tag of tags) drawDot(context, tag);
    drawTags(
      made,
      context,
      picture,
      tags.filter(({ text }) => text),
    );
  }

  function drawLevel(made, context, level) {
    const { width } = sizeOf(made);
    const y = made.valToPos(level.value, "y");
    context.strokeStyle = signs.colour("muted");
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(width, y);
    context.stroke();
    context.setLineDash([]);
  }

  function drawMark(made, context, { x, sign }) {
    const { width, height } = sizeOf(made);
    const left = made.valToPos(x, "x");
    if (left >= 0 && left <= width) signs.onCanvas(context, sign, left, height - 10, MARK_PIXELS, signs.colourOf(sign));
  }

  function endTags(made, { curves, direct, kind }) {
    const drawn = axes.KINDS[kind].log ? curves.filter(({ x }) => x[x.length - 1] > 0) : curves;
    return drawn
      .filter(({ y }) => y.length)
      .map(({ x, y, label, colour }) => {
        const [left, top] = placeOf(made, x[x.length - 1], y[y.length - 1]);
        return {
          x: left,
          y: top,
          text: direct ? label : "",
          font: STRONG,
          colour: signs.colour(colour),
          hollow: false,
        };
      });
  }

  function levelTags(made, { level, direct }) {
    if (!level) return [];
    const reached = level.reached.map(({ x, text, colour }) => {
      const [left, top] = placeOf(made, x, level.value);
      return { x: left, y: top, text: direct ? text : "", font: FONT, colour: signs.colour(colour), hollow: true };
    });
    return [...reached, nameOfLevel(made, level)];
  }

  /** Anywhere along the level, just above it. */
  function nameOfLevel(made, { value, text }) {
    const [width, y] = [sizeOf(made).width, made.valToPos(value, "y")];
    const corners = [0.005, 0.25, 0.5, 0.75].map((share) => [share * width, y - labels.HEIGHT - 2]);
    return { x: 0, y, corners, text, font: FONT, colour: signs.colour("muted"), bare: true };
  }

  function drawDot(context, { x, y, colour, hollow, bare }) {
    if (bare) return;
    context.beginPath();
    context.arc(x, y, hollow ? 4 : 3.2, 0, 2 * Math.PI);
    context.fillStyle = hollow ? signs.colour("panel") : colour;
    context.fill();
    context.strokeStyle = colour;
    context.lineWidth = 1.8;
    if (hollow) context.stroke();
  }

  function drawTags(made, context, picture, tags) {
    const { width, height } = sizeOf(made);
    const box = { width: width + roomAtRight(picture), height: height - (picture.marks.length ? 18 : 0) };
    const wanted = tags.map((tag) => ({ ...tag, width: widthOf(tag.text, tag.font) }));
    const spots = labels.place(
      wanted,
      box,
      picture.curves.map((_, index) => pointsOf(made, index + 1)),
    );
    context.textAlign = "left";
    spots.forEach((spot, index) => spot && drawText(context, wanted[index], spot));
  }

  /** With a rim of the ground's colour, so that a line behind it does not cross the letters. */
  function drawText(context, { text, font, colour }, { left, top }) {
    context.font = font;
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = signs.colour("panel");
    context.strokeText(text, left, top + labels.HEIGHT / 2);
    context.fillStyle = colour;
    context.fillText(text, left, top + labels.HEIGHT / 2);
  }

  function pointsOf(made, series) {
    const [x, y] = [made.data[0], made.data[series]];
    return x
      .map((_, index) => index)
      .filter((index) => formats.known(y[index]))
      .map((index) => placeOf(made, x[index], y[index]));
  }

  return { FONT, widthOf, roomAtRight, inPlot, under, over };
})();
