"use strict";
/** What a score is drawn against, and the ranges and ticks of axes, all computed from the data. */
const axes = (() => {
  const FAR = 6; // a score that is so many usual spreads away is left below or above the frame
  const USUAL_SPREAD = 0.05;
  const MINUTE = 60;
  const HOUR = 3600;
  const SECONDS_STEPS = [
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    20,
    30,
    ...[1, 2, 5, 10, 20, 30].map((n) => n * MINUTE),
    ...[1, 2, 4, 6, 12, 24, 48, 96].map((n) => n * HOUR),
  ];
  const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];

  const secondsTick = (value) => (value < MINUTE ? `${Number(value.toPrecision(3))} s` : formats.duration(value));
  const bytesTick = (value) => formats.text(formats.bytes(value)).replace(/\.0+ /, " ");

  /** An axis of bytes names what it counts, so that two counts are never mixed. */
  const KINDS = {
    round: { option: "round", title: () => "round", tick: formats.count, steps: WHOLE_STEPS, log: false },
    time: { option: "time", title: () => "time since the start", tick: secondsTick, steps: SECONDS_STEPS, log: false },
    sent: {
      option: "bytes sent per client",
      title: (sentKind) =>
        `${sentKind === "values" ? "bytes sent per client (values only)" : "encoded bytes sent per client"}, log scale`,
      tick: bytesTick,
      steps: null,
      log: true,
    },
  };

  const quantile = (sorted, share) => sorted[Math.round(share * (sorted.length - 1))];

  /** The range of scores: all of them, but for the few at the beginning that would press the others flat. */
  function scoreRange(scores) {
    const sorted = scores.filter(formats.known).sort((one, other) => one - other);
    if (!sorted.length) return [0, 1];
    const [low, high] = [quantile(sorted, 0.1), quantile(sorted, 0.95)];
    const spread = Math.max(high - low, USUAL_SPREAD * Math.abs(high)); // at the end scores are often all the same
    const bottom = Math.max(sorted[0], low - FAR * spread);
    const top = Math.min(sorted[sorted.length - 1], high + FAR * spread);
    const margin = (top - bottom || Math.abs(top) || 1) * 0.06;
    return [bottom - margin, top + margin];
  }

  /** Bytes at 1 and 3 of each power of ten, fewer where they would crowd. */
  function logTicks(low, high, width) {
    const powers = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
      powers.push(10 ** power);
    const all = powers.flatMap((power) => [power, 3 * power]).filter((value) => value >= low && value <= high);
    const crowded = all.length * 70 > width;
    const few = crowded ? all.filter((value) => powers.includes(value)) : all;
    return few.length > 1 ? few : halves(low, high);
  }

  /** Within one power of ten: 1, 2, 5 and the like say too little, so round steps. */
  function halves(low, high) {
    const step = stepOf((high - low) / 4);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, index) => (first + index) * step);
  }

  /** The next number of 1, 2, 5 times a power of ten. */
  function stepOf(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least * 0.999);
  }

  /** About four steps that hold the largest number of seconds: the scale that phase bars share. */
  function secondsScale(largest) {
    const step = stepOf(Math.max(largest, 1e-3) / 4);
    const needed = Math.max(1, Math.ceil(largest / step - 1e-9));
    const [unit, size] = needed * step < 0.1 ? ["ms", 1e-3] : ["s", 1];
    const numbers = Array.from({ length: needed + 1 }, (_, index) =>
      String(Number(((index * step) / size).toPrecision(6))),
    );
    return { top: needed * step, ticks: [...numbers.slice(0, -1), `${numbers[needed]} ${unit}`] };
  }

  return { KINDS, scoreRange, logTicks, secondsScale };
})();
