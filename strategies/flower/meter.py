"""What goes over the wire in a round, told apart by what it is for."""

from __future__ import annotations

from flwr.app import Message
from flwr.serverapp import Grid

from common.messages.content import payload_of
from common.rounds.account import Purpose, RoundAccount, Spent
from strategies.flower.exchange import Questions
from strategies.flower.prompt_grid import PromptGrid


class Meter:
    """Puts down in the account of the round under way what exchanges with clients took."""

    def __init__(self) -> None:
        self.account: RoundAccount | None = None  # of the round under way

    def begin(self, account: RoundAccount) -> None:
        """Put down from now on in the account of a new round."""
        if self.account is not None:
            account.take_over(self.account)
        self.account = account

    def end(self) -> None:
        """Leave what comes from now on to the next round."""
        self.account = None

    def sent(self, purpose: Purpose, messages: dict[str, Message]) -> None:
        """Note the payloads of messages to clients."""
        spent = self._spent(purpose)
        for name, message in messages.items():
            spent.payload_down[name] += len(payload_of(message.content))

    def received(self, purpose: Purpose, name: str, reply: Message) -> None:
        """Note the payload of a client's reply."""
        self._spent(purpose).payload_up[name] += len(payload_of(reply.content))

    def close(self, purpose: Purpose, questions: Questions, grid: Grid) -> None:
        """Note what an exchange that is over took altogether."""
        for name, carried in questions.close(grid).items():
            spent = self._spent(purpose)
            spent.message_down[name] += carried.down_bytes
            spent.message_up[name] += carried.up_bytes

    def note_others(self, grid: Grid) -> None:
        """Note what the link carried beside messages: joining, signs of life, answers that came too late."""
        if isinstance(grid, PromptGrid):
            carried = grid.carried_beside()
            if carried.down_bytes or carried.up_bytes:
                spent = self._spent("link")
                spent.message_down[""] += carried.down_bytes
                spent.message_up[""] += carried.up_bytes

    def _spent(self, purpose: Purpose) -> Spent:
        assert self.account is not None, "a round is under way"
        return self.account.spent_on(purpose)
