"""A client that is killed at one moment of one round: `python -m tests.harness.dying_client MOMENT ROUND join ...`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from client.__main__ import main
from client.round import Participant
from client.stream import Hand, Stream
from common.rounds.algorithm import LocalWork

BEFORE_TRAINING = "before-training"
WHILE_TRAINING = "while-training"
AFTER_SAVING = "after-saving"
AFTER_THE_REPLY = "after-the-reply"
MOMENTS = (BEFORE_TRAINING, WHILE_TRAINING, AFTER_SAVING, AFTER_THE_REPLY)


class Doom:
    """Where the client is in its round, and when it has to die."""

    def __init__(self, moment: str, number: int) -> None:
        self._moment = moment
        self._number = number
        self._here = 0

    def enter(self, number: int) -> None:
        self._here = number

    def reach(self, moment: str) -> None:
        if (moment, self._here) == (self._moment, self._number):
            os.kill(os.getpid(), signal.SIGKILL)


def arm(doom: Doom) -> None:
    train, gradient, push = Participant.train, LocalWork.gradient, Stream._write_answer

    def dying_train(self: Participant, order: Any) -> Any:  # noqa: ANN401 - passed through
        doom.enter(order.plan.round)
        doom.reach(BEFORE_TRAINING)
        report = train(self, order)
        doom.reach(AFTER_SAVING)
        return report

    def dying_gradient(self: LocalWork, weights: Any) -> Any:  # noqa: ANN401 - passed through
        found = gradient(self, weights)
        doom.reach(WHILE_TRAINING)
        return found

    async def dying_push(self: Stream, hand: Hand) -> None:
        await push(self, hand)
        doom.reach(AFTER_THE_REPLY)

    Participant.train = dying_train  # type: ignore[method-assign]
    LocalWork.gradient = dying_gradient  # type: ignore[method-assign]
    Stream._write_answer = dying_push  # type: ignore[method-assign]


if __name__ == "__main__":
    _, moment, number, *rest = sys.argv
    arm(Doom(moment, int(number)))
    sys.argv = ["proxskip-client", *rest]
    main()
