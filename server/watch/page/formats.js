"use strict";
/** Numbers and times as people read them. A quantity is {value, unit}, so that units can be set apart. */
const formats = (() => {
  const NOTHING = "–";
  const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

  const known = (number) => typeof number === "number" && Number.isFinite(number);

  /** Three digits that count: 9.42, 98.0, 471. */
  function threeDigits(number) {
    if (number === 0) return "0";
    const digitsBefore = Math.max(1, Math.floor(Math.log10(Math.abs(number))) + 1);
    return number.toFixed(Math.max(0, 3 - digitsBefore));
  }

  function scaled(number, units) {
    if (!known(number)) return { value: NOTHING, unit: "" };
    let size = number;
    let step = 0;
    while (Math.abs(size) >= 999.5 && step < units.length - 1) {
      size /= 1000;
      step += 1;
    }
    return { value: step === 0 ? String(Math.round(size)) : threeDigits(size), unit: units[step] };
  }

  const bytes = (number) => scaled(number, ["B", "kB", "MB", "GB", "TB"]);
  const speed = (bits) => scaled(bits, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]);
  const text = ({ value, unit }) => (unit ? `${value} ${unit}` : value);

  /** 4.2 ms, 0.36 s, 32 s, 2 min 45 s, 3 h 5 min. */
  function duration(seconds) {
    if (!known(seconds)) return NOTHING;
    if (seconds > 0 && seconds < 0.0995) return `${Number((1000 * seconds).toPrecision(2))} ms`;
    if (seconds < 9.995) return `${Number.isInteger(seconds) ? seconds : seconds.toFixed(2)} s`;
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return pair(whole, 60, "min", "s");
    return whole < 86400 ? pair(Math.round(whole / 60), 60, "h", "min") : pair(Math.round(whole / 3600), 24, "d", "h");
  }

  function pair(total, size, large, small) {
    const rest = total % size;
    return `${Math.floor(total / size)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
  }

  const count = (number) => (known(number) ? number.toLocaleString("en-US") : NOTHING);

  function score(number) {
    if (!known(number)) return NOTHING;
    return Math.abs(number) >= 1000 ? power(number) : number.toFixed(4);
  }

  const density = (number) => (known(number) ? number.toFixed(number < 0.0995 ? 3 : 2) : NOTHING);

  /** 2 · 10⁻⁶ */
  function power(number) {
    if (!known(number)) return NOTHING;
    if (number === 0) return "0";
    const [digits, exponent] = number.toExponential(0).split("e");
    const raised = [...exponent].map((digit) => (digit === "-" ? "⁻" : (SUPERSCRIPTS[digit] ?? "")));
    return `${digits} · 10${raised.join("")}`;
  }

  const time = (iso) => (iso ? iso.slice(11, 19) : NOTHING);

  /** 14:03 today, otherwise 17 Nov 14:03. */
  function started(iso) {
    if (!iso) return NOTHING;
    const date = new Date(iso);
    const minute = iso.slice(11, 16);
    const today = date.toISOString().slice(0, 10) === new Date().toISOString().slice(0, 10);
    return today ? minute : `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]} ${minute}`;
  }

  /** How long ago, no finer than one can read. */
  function ago(iso) {
    const seconds = Math.max(0, Math.round((Date.now() - Date.parse(iso)) / 1000));
    return `${duration(seconds < 60 ? seconds : seconds - (seconds % 60))} ago`;
  }

  const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

  return { known, bytes, speed, text, duration, count, score, density, power, time, started, ago, plural, threeDigits };
})();
