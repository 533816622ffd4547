"use strict";
/** Where labels stand in a chart: beside what they name, never over each other, and over a curve only if they must. */
const labels = (() => {
  const HEIGHT = 15;
  const GAP = 8;
  const SHIFTS = [0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5].map((step) => step * HEIGHT);
  const PRICE_OF_A_COVERED_POINT = 12; // in pixels of distance
  const SAMPLE_PIXELS = 6;

  /** The corners that a label of this width may have, the most natural first. */
  function corners({ x, y, width }) {
    return [
      [x + GAP, y - HEIGHT / 2],
      [x - width, y - HEIGHT - 5],
      [x - width, y + 5],
      [x - width / 2, y + 7],
      [x - width / 2, y - HEIGHT - 7],
      [x - width - GAP, y - HEIGHT / 2],
    ];
  }

  function candidates(label) {
    return (label.corners || corners(label)).flatMap(([left, top], rank) =>
      SHIFTS.map((shift) => ({ left, top: top + shift, width: label.width, price: 6 * rank + Math.abs(shift) })),
    );
  }

  const inside = (spot, box) =>
    spot.left >= 0 && spot.top >= 0 && spot.left + spot.width <= box.width && spot.top + HEIGHT <= box.height;
  const overlap = (one, other) =>
    one.left < other.left + other.width + 4 &&
    other.left < one.left + one.width + 4 &&
    Math.abs(one.top - other.top) < HEIGHT;

  function covered(spot, points) {
    const hit = ([x, y]) =>
      x > spot.left - 2 && x < spot.left + spot.width + 2 && y > spot.top && y < spot.top + HEIGHT;
    return points.filter(hit).length;
  }

  /** The points of a curve and enough between them that nothing slips through. */
  function sampled(line) {
    return line.flatMap(([x, y], index) => {
      const [fromX, fromY] = line[Math.max(0, index - 1)];
      const steps = Math.max(1, Math.ceil(Math.hypot(x - fromX, y - fromY) / SAMPLE_PIXELS));
      return Array.from({ length: steps }, (_, step) => [
        fromX + ((x - fromX) * (step + 1)) / steps,
        fromY + ((y - fromY) * (step + 1)) / steps,
      ]);
    });
  }

  /**
   * Find a place for each label; null for one that has none, as an overlap says less than nothing.
   * @param {{x: number, y: number, width: number, corners: ?number[][]}[]} wanted what they name, how wide they are, and
   *     where their corners may be, if that is special
   * @param {{width: number, height: number}} box
   * @param {number[][][]} lines the curves, as points
   */
  function place(wanted, box, lines) {
    const points = lines.flatMap(sampled);
    const taken = [];
    return wanted.map((label) => {
      const free = candidates(label).filter(
        (spot) => inside(spot, box) && !taken.some((other) => overlap(spot, other)),
      );
      for (const spot of free) spot.price += PRICE_OF_A_COVERED_POINT * covered(spot, points);
      const best = free.reduce((least, spot) => (least && least.price <= spot.price ? least : spot), null);
      if (best) taken.push(best);
      return best;
    });
  }

  return { place, HEIGHT };
})();
