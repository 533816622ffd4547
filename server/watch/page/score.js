"use strict";
/** The score of a run against rounds, time or bytes, with signs where something happened. */
const score = (() => {
  const { element } = dom;
  const CHART_HEIGHT = 300;

  function view(one, state, changed) {
    return parts.panel(
      "score",
      "score-panel",
      parts.header(
        one.metric || "Score",
        parts.axisChoice("run-axis", state, changed),
      ),
      element("div", {
        class: "chart",
        role: "img",
        "data-key": "chart",
        drawn: (host) => chart.show(host, picture(one, state.axis)),
      }),
    );
  }

  function picture(one, kind) {
    const curve = {
      name: one.id,
      label: `${one.algorithm || "score"} ${formats.score(one.score)}`,
      colour: "ours",
      dash: [],
      x: one.curve[kind],
      y: one.curve.score,
    };
    return {
      key: `${one.id} ${kind}`,
      kind,
      title: axes.KINDS[kind].title(one.sent_kind),
      height: CHART_HEIGHT,
      curves: [curve],
      range: rangeOf(one, kind),
      marks: (one.marks || [])
        .map((mark) => ({ x: mark[kind], sign: mark.sign, text: mark.text }))
        .filter((mark) => formats.known(mark.x)),
      level: null,
      band: kind === "time" ? waitingBand(one) : null,
      direct: true,
      readout: (place, marks) => readout(one, kind, place, marks),
      describe: `${one.metric} against ${axes.KINDS[kind].option}: ${formats.score(one.score)} in round ${one.round}`,
    };
  }

  function rangeOf(one, kind) {
    if (kind === "sent") return null;
    const last = one.curve[kind][one.curve[kind].length - 1] || 0;
    if (kind === "round") return [0, Math.max(last, signs.isGoing(one) ? one.rounds || 0 : 0, 1)];
    return [0, Math.max(last, (one.seconds_running || 0) + (signs.isGoing(one) ? one.seconds_left || 0 : 0), 1)];
  }

  function waitingBand(one) {
    const from = one.curve.time[one.curve.time.length - 1];
    const to = one.seconds_running;
    if (one.state !== "waiting" || !formats.known(from) || !(to > from)) return null;
    return { from, to, text: `waiting ${formats.duration(to - from)}` };
  }

  function readout(one, kind, place, marks) {
    if (marks.length)
      return marks.slice(0, 3).map((mark) => element("span", {}, signs.icon(mark.sign), " ", mark.text));
    const index = place === null ? -1 : one.curve[kind].indexOf(place);
    if (index < 0)
      return [
        element(
          "span",
          {},
          one.marks && one.marks.length
            ? "Point at the curve for its numbers, at a sign for what happened."
            : "Point at the curve for its numbers.",
        ),
      ];
    const { round, time, sent, score: scores } = one.curve;
    const item = (word, value) => element("span", {}, word, " ", element("b", {}, value));
    return [
      item("round", formats.count(round[index])),
      item(one.metric || "score", formats.score(scores[index])),
      formats.known(time[index]) ? item("after", formats.duration(time[index])) : null,
      formats.known(sent[index]) ? item("sent", formats.text(formats.bytes(sent[index]))) : null,
    ];
  }

  return { view };
})();
