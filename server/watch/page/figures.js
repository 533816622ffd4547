"use strict";
/** The six numbers that say how a run does. */
const figures = (() => {
  const { element } = dom;
  const ZERO = 1e-5; // a relative sum of control variates below it is rounding

  function view(one) {
    return element(
      "dl",
      { class: "panel figures", "data-key": "figures" },
      scoreFigure(one),
      roundFigure(one),
      timeFigure(one),
      sentFigure(one),
      modelFigure(one),
      sumFigure(one),
    );
  }

  const figure = (key, title, value, note) =>
    element(
      "div",
      { "data-key": key },
      element("dt", {}, title),
      element("dd", { class: "value" }, value),
      element("dd", { class: "note", title: typeof note === "string" ? note : null }, note),
    );

  function scoreFigure(one) {
    const best =
      one.best && formats.known(one.best.score)
        ? `best ${formats.score(one.best.score)} in round ${formats.count(one.best.round)}`
        : "not measured yet";
    return figure("score", one.metric || "Score", [formats.score(one.score), parts.spark(one.spark)], best);
  }

  function roundFigure(one) {
    const rounds = element(
      "span",
      {},
      formats.count(one.round),
      element("span", { class: "of" }, ` / ${formats.count(one.rounds)}`),
    );
    const pace = formats.known(one.seconds_per_round) ? `${formats.duration(one.seconds_per_round)} per round` : "";
    return figure(
      "round",
      "Round",
      [rounds, parts.bar(one.round / one.rounds, signs.isGoing(one) ? "" : "quiet")],
      pace,
    );
  }

  function timeFigure(one) {
    const ran = formats.duration(one.seconds_running);
    if (!signs.isGoing(one)) return figure("time", one.state === "finished" ? "Took" : "Ran for", ran, "");
    const waits =
      one.banner && one.banner.clients && one.banner.clients.length === 1
        ? `once ${one.banner.clients[0]} answers`
        : `running for ${ran}`;
    return figure("time", "Time left", formats.duration(one.seconds_left), waits);
  }

  function sentFigure(one) {
    const also = [
      ["wire", one.wire_bytes_per_client],
      ["got", one.got_bytes_per_client],
    ].filter(([, number]) => formats.known(number));
    const note = one.sent_kind === "values" ? ["values only"] : [];
    return figure(
      "sent",
      "Sent, per client",
      element("span", {}, parts.quantity(formats.bytes(one.sent_bytes_per_client))),
      [...note, ...also.map(([word, number]) => `${word} ${formats.text(formats.bytes(number))}`)].join(", "),
    );
  }

  function modelFigure(one) {
    const kept = formats.known(one.weights_kept) ? one.weights_kept : one.weights;
    const share =
      formats.known(one.weights_kept) && one.weights
        ? `weights kept, density ${formats.density(one.weights_kept / one.weights)}`
        : "weights";
    return figure(
      "model",
      "Model",
      element("span", {}, formats.count(kept), element("span", { class: "of" }, ` / ${formats.count(one.weights)}`)),
      share,
    );
  }

  function sumFigure(one) {
    if (!formats.known(one.control_sum))
      return figure("sum", "Sum of h", "–", one.how === "deployed" ? "not audited" : "this method has none");
    const zero = Math.abs(one.control_sum) <= ZERO;
    return figure(
      "sum",
      "Sum of h",
      formats.power(one.control_sum),
      parts.state(zero ? "done" : "late", zero ? "zero up to rounding" : "not zero"),
    );
  }

  return { view };
})();
