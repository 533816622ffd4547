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
  const NEAR_PIXELS = 8;

  const pictures = new WeakMap(); // of a host: what it shows now
  const plots = new WeakMap();
  const shown = new Set();
  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => fit(target.parentElement)));

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
      padding: [14, () => overlay.roomAtRight(picture()), 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: {
          time: false,
          distr: axes.KINDS[kind].log ? 3 : 1,
          range: (_, low, high) => rangeOfX(picture(), low, high),
        },
        y: { range: () => axes.scoreRange(scoresOf(picture())) },
      },
      axes: [axisOfX(picture), axisOfY()],
      series: [{}, ...curves.map((_, index) => seriesOf(picture, index))],
      hooks: {
        drawAxes: [(made) => overlay.inPlot(made, (context) => overlay.under(made, context, picture()))],
        draw: [(made) => overlay.inPlot(made, (context) => overlay.over(made, context, picture()))],
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
  const axis = () => ({
    stroke: () => signs.colour("muted"),
    font: overlay.FONT,
    labelFont: overlay.FONT,
    grid: lines(),
    ticks: { show: false },
  });

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
    const widest = (_, values) =>
      14 + Math.max(20, ...(values || []).map((value) => overlay.widthOf(value, overlay.FONT)));
    const values = (_, ticks, __, ___, step) =>
      ticks.map((tick) => (Math.abs(tick) >= 1e4 ? tick.toExponential(0) : tick.toFixed(decimals(step))));
    return { ...axis(), space: 44, size: widest, values };
  }

  const decimals = (step) => Math.min(6, Math.max(2, Math.ceil(-Math.log10(step) - 1e-9)));

  // ------------------------------------------------------------------------------------------------ what is pointed at

  function tell(host) {
    const made = plots.get(host);
    const picture = pictures.get(host);
    const left = made ? made.cursor.left : -1;
    const x =
      made && left >= 0 && made.cursor.idx !== null && made.cursor.idx !== undefined
        ? made.data[0][made.cursor.idx]
        : null;
    const near =
      x === null ? [] : picture.marks.filter((mark) => Math.abs(made.valToPos(mark.x, "x") - left) < NEAR_PIXELS);
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
