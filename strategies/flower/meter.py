"""What goes over the wire in a round, told apart by what it is for."""

from __future__ import annotations

from flwr.app import Message
from flwr.serverapp import Grid

from common.messages.pieces import payload_bytes
from common.rounds.account import Purpose, RoundAccount, Spent
from strategies.flower.prompt_grid import MessageBytes, traffic_of


class Meter:
    """Reads the grid's counters between the exchanges of a run, and puts down what came in between."""

    def __init__(self) -> None:
        self.account: RoundAccount | None = None  # of the round under way
        self._grid: Grid | None = None
        self._last = MessageBytes()

    def begin(self, grid: Grid, account: RoundAccount) -> None:
        """Put down from now on in the account of a new round."""
        if self.account is not None:
            account.take_over(self.account)
        self._grid, self.account = grid, account

    def end(self) -> None:
        """Leave what comes from now on to the next round."""
        self.account = None

    def sent(self, purpose: Purpose, messages: dict[str, Message]) -> None:
        """Note the payloads of messages to clients."""
        spent = self._spent(purpose)
        for name, message in messages.items():
            spent.payload_down[name] += payload_bytes(message.content)

    def received(self, purpose: Purpose, name: str, reply: Message) -> None:
        """Note the payload of a client's reply."""
        self._spent(purpose).payload_up[name] += payload_bytes(reply.content)

    def read(self, purpose: Purpose) -> MessageBytes:
        """Note that all messages since the last reading were for this purpose, and return what they took."""
        now = MessageBytes() if self._grid is None else traffic_of(self._grid)
        since, self._last = now - self._last, now
        if since.down or since.up:
            spent = self._spent(purpose)
            spent.message_down += since.down
            spent.message_up += since.up
        return since

    def _spent(self, purpose: Purpose) -> Spent:
        assert self.account is not None, "a round is under way"
        return self.account.spent_on(purpose)
