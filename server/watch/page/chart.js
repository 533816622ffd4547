"use strict";
/**
 * Score against something, by uPlot, with labels at the curves.
 * @typedef {{name: string, label: string, colour: string, dash: number[], x: number[], y: number[]}} Curve
 * @typedef {{x: number, sign: string, text: string}} Mark
 * @typedef {{
 *   key: string, kind: string, title: string, height: number, curves: Curve[], range: ?number[], marks: Mark[],
 *   level: ?{value: number, text: string, reached: {x: number, text: string, colour: string}[]},
 *   band: ?{from: number, to: number, text: string}, direct: boolean,
 *   readout: function(?number, Mark[]): Array, describe: string
 * }} Picture
 */
const chart = (() => {
  const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
  const STRONG = `600 ${FONT}`;
  const MARK_PIXELS = 11;
  const NEAR_PIXELS = 8;
  const LABEL_ROOM = 16;

  const measuring = document.createElement("canvas").getContext("2d");
  const pictures = new WeakMap(); // of a host: what it shows now
  const plots = new WeakMap();
  const shown = new Set();
  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => fit(target.parentElement)));

  const widthOf = (text, font) => {
    measuring.font = font;
    return Math.ceil(measuring.measureText(text).width);
  };

  /** Draw a picture in its host; what is there stays if only its data have changed. */
  function show(host, picture) {
    const before = pictures.get(host);
    pictures.set(host, picture);
    if (!before) build(host);
    host.setAttribute("aria-label", picture.describe);
    if (!plots.get(host) || before.key !== picture.key) plot(host);
    else if (JSON.stringify(before) !== JSON.stringify(picture)) plots.get(host).setData(tableOf(picture));
    tell(host);
  }

  function build(host) {
    host.append(dom.element("div", { class: "readout" }), dom.element("div", { class: "plot" }));
    resized.observe(host.lastChild);
  }

  function plot(host) {
    for (const old of shown) if (old === plots.get(host) || !old.root.isConnected) forget(old);
    const made = new uPlot(options(host), tableOf(pictures.get(host)), host.lastChild);
    plots.set(host, made);
    shown.add(made);
  }

  function forget(old) {
    shown.delete(old);
    old.destroy();
  }

  function fit(host) {
    const made = host && plots.get(host);
    if (!made || !host.isConnected) return;
    const size = { width: host.lastChild.clientWidth, height: pictures.get(host).height };
    if (size.width && (size.width !== made.width || size.height !== made.height)) made.setSize(size);
  }

  /** All curves over all their places; uPlot draws over the gaps. */
  function tableOf({ curves, kind }) {
    const drawn = (value) => formats.known(value) && (!axes.KINDS[kind].log || value > 0);
    const tables = curves.map(({ x, y }) => {
      const kept = x.map((_, index) => index).filter((index) => drawn(x[index]) && formats.known(y[index]));
      return [kept.map((index) => x[index]), kept.map((index) => y[index])];
    });
    return tables.length === 1 ? tables[0] : uPlot.join(tables.map(increasing));
  }

  /** Two rounds of one place, such as of the same bytes: the later one counts. */
  function increasing([x, y]) {
    const last = x.map((_, index) => index).filter((index) => x[index] !== x[index + 1]);
    return [last.map((index) => x[index]), last.map((index) => y[index])];
  }

  function options(host) {
    const picture = () => pictures.get(host);
    const { kind, curves, height } = picture();
    return {
      width: host.lastChild.clientWidth || 300,
      height,
      padding: [14, () => roomAtRight(picture()), 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: { time: false, distr: axes.KINDS[kind].log ? 3 : 1, range: (_, low, high) => rangeOfX(picture(), low, high) },
        y: { range: () => axes.scoreRange(scoresOf(picture())) },
      },
      axes: [axisOfX(picture), axisOfY()],
      series: [{}, ...curves.map((_, index) => seriesOf(picture, index))],
      hooks: {
        drawAxes: [(made) => inPlot(made, (context) => drawBand(made, context, picture()))],
        draw: [(made) => inPlot(made, (context) => drawOver(made, context, picture()))],
        setCursor: [() => tell(host)],
      },
    };
  }

  const scoresOf = ({ curves, level }) => [...curves.flatMap((curve) => curve.y), ...(level ? [level.value] : [])];

  function rangeOfX({ range, kind }, low, high) {
    const [from, to] = range || [low ?? 1, high ?? 10];
    if (!axes.KINDS[kind].log) return [from, to > from ? to : from + 1];
    return to > from ? [from * 0.9, to * 1.1] : [from / 2, from * 2];
  }

  function seriesOf(picture, index) {
    return {
      stroke: () => signs.colour(picture().curves[index].colour),
      dash: picture().curves[index].dash,
      width: 2,
      spanGaps: true,
      points: { show: false },
    };
  }

  const lines = () => ({ stroke: () => signs.colour("line-soft"), width: 1 });
  const axis = () => ({ stroke: () => signs.colour("muted"), font: FONT, labelFont: FONT, grid: lines(), ticks: { show: false } });

  function axisOfX(picture) {
    const { kind, title } = picture();
    const { steps, tick, log } = axes.KINDS[kind];
    const splits = (made, _, low, high) => axes.logTicks(low, high, made.bbox.width / devicePixelRatio);
    return {
      ...axis(),
      space: log ? 70 : 90,
      size: 26,
      label: title,
      labelSize: 22,
      values: (_, values) => values.map(tick),
      ...(steps ? { incrs: steps } : {}),
      ...(log ? { splits, filter: (_, values) => values } : {}),
    };
  }

  function axisOfY() {
    const widest = (_, values) => 14 + Math.max(20, ...(values || []).map((value) => widthOf(value, FONT)));
    const values = (_, ticks, __, ___, step) => ticks.map((tick) => (Math.abs(tick) >= 1e4 ? tick.toExponential(0) : tick.toFixed(decimals(step))));
    return { ...axis(), space: 44, size: widest, values };
  }

  const decimals = (step) => Math.min(6, Math.max(2, Math.ceil(-Math.log10(step) - 1e-9)));

  /** Of several curves some end at the right, where their names need room; one has room of its own. */
  function roomAtRight({ direct, curves }) {
    const names = direct && curves.length > 1 ? curves.map(({ label }) => widthOf(label, STRONG)) : [];
    return LABEL_ROOM + Math.max(0, ...names);
  }

  // ------------------------------------------------------------------------------------------------ beside the curves

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
  function drawBand(made, context, { band }) {
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

  function drawOver(made, context, picture) {
    if (picture.level) drawLevel(made, context, picture.level);
    for (const mark of picture.marks) drawMark(made, context, mark);
    const tags = [...levelTags(made, picture), ...endTags(made, picture)];
    for (const tag of tags) drawDot(context, tag);
    drawTags(made, context, picture, tags.filter(({ text }) => text));
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
    return drawn.filter(({ y }) => y.length).map(({ x, y, label, colour }) => {
      const [left, top] = placeOf(made, x[x.length - 1], y[y.length - 1]);
      return { x: left, y: top, text: direct ? label : "", font: STRONG, colour: signs.colour(colour), hollow: false };
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
    const spots = labels.place(wanted, box, picture.curves.map((_, index) => pointsOf(made, index + 1)));
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
    return x.map((_, index) => index).filter((index) => formats.known(y[index])).map((index) => placeOf(made, x[index], y[index]));
  }

  // ------------------------------------------------------------------------------------------------ what is pointed at

  function tell(host) {
    const made = plots.get(host);
    const picture = pictures.get(host);
    const left = made ? made.cursor.left : -1;
    const x = made && left >= 0 && made.cursor.idx !== null && made.cursor.idx !== undefined ? made.data[0][made.cursor.idx] : null;
    const near = x === null ? [] : picture.marks.filter((mark) => Math.abs(made.valToPos(mark.x, "x") - left) < NEAR_PIXELS);
    dom.show(host.firstChild, picture.readout(x ?? null, near));
  }

  /** Of a curve, the score at a place: the last one that was measured up to there. */
  function scoreAt({ x, y }, place) {
    let found = null;
    for (let index = 0; index < x.length && x[index] <= place; index += 1) found = y[index];
    return x.length && place <= x[x.length - 1] ? found : null;
  }

  /** Other colours: those who prefer dark have just said so, or no longer do. */
  function repaint() {
    for (const made of shown) made.redraw();
  }

  return { show, scoreAt, repaint };
})();
