"""The Flower ClientApp: unpack, run the round, pack.

A SuperNode of Flower starts it anew for every message, so it needs a folder for its memory: `--node-config
'partition="0/4" state="FOLDER"'`, or `state` in the run's configuration. The resident node keeps the participant.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from client.part import Part, default_name
from client.round import ForgottenError, Participant, Station, StepHeard
from common.errors import MessageError, NotKeptError, PublicError, UserError
from common.experiment.experiment import Experiment
from common.learning.own_code import is_out_of_memory
from common.messages.flower import CLIENT_CANNOT_NOW, CLIENT_FAILED, CLIENT_FORGOT
from common.messages.messages import (
    Asked,
    Run,
    asked_in,
    pack_control,
    pack_done,
    pack_evaluation,
    pack_introduction,
    pack_report,
    unpack_notice,
    unpack_order,
    unpack_recentring,
    unpack_run,
)
from common.program.device import choose_device
from common.program.identity import checked_name
from common.say import Say, one_line, sparing
from common.storage.disk import NoRoomError

ParticipantFor = Callable[[Context], Participant]
Answering = Callable[[RecordDict, Context], RecordDict | Error]
SIMULATED = {"partition-id", "num-partitions"}  # what Flower's simulation says of a node, and no more


def make_app(participant_for: ParticipantFor, say: Say) -> ClientApp:
    """Return a ClientApp that answers for the participant of a message's context."""
    app, answer = ClientApp(), answering(participant_for, say)

    def reply(message: Message, context: Context) -> Message:
        said = answer(message.content, context)
        return Message(error=said, reply_to=message) if isinstance(said, Error) else Message(said, reply_to=message)

    for asks in (app.train(), app.evaluate(), app.query(), *map(app.query, ("notice", "audit", "recentre"))):
        asks(reply)
    return app


def answering(participant_for: ParticipantFor, say: Say) -> Answering:
    """Return what answers the content of a message, with what went wrong in one line; it says what the server says."""

    def answer(content: RecordDict, context: Context) -> RecordDict | Error:
        try:
            asked = asked_in(content)
            if asked == "notice":
                say(unpack_notice(content))
                return pack_done()
            return ANSWERS[asked](participant_for(context), content)
        except BaseException as error:  # whatever it was, of a task's own code too: the server must hear of it
            return Error(_code(error), _reason(error, say))

    return answer


def _train(participant: Participant, content: RecordDict) -> RecordDict:
    return pack_report(participant.train(unpack_order(content, participant.like, participant.kept)))


def _evaluate(participant: Participant, content: RecordDict) -> RecordDict:
    return pack_evaluation(participant.evaluate(unpack_order(content, participant.like).state))


def _audit(participant: Participant, content: RecordDict) -> RecordDict:
    return pack_control(participant.correction(unpack_order(content, participant.like)))


def _recentre(participant: Participant, content: RecordDict) -> RecordDict:
    participant.recentre(unpack_recentring(content, participant.like))
    return pack_done()


ANSWERS: dict[Asked, Callable[[Participant, RecordDict], RecordDict]] = {
    "introduce": lambda participant, _: pack_introduction(participant.introduction),
    "train": _train,
    "evaluate": _evaluate,
    "audit": _audit,
    "recentre": _recentre,
}


def run_of(context: Context) -> Run:
    """Read what the server says of a run; a class outside this repo only where this node's owner has named it."""
    node = context.node_config
    allowed = [name for key in ("allow-task", "allow-algorithm") for name in str(node.get(key) or "").split()]
    return unpack_run(context.run_config, context.run_id, allowed)


def participant_of(context: Context, run: Run) -> Participant:
    """Build the participant of a run that a context describes: all but the run is of this node."""
    node = context.node_config
    part = _part(node)
    state = str(node.get("state") or "")
    station = Station(
        name=checked_name(str(node.get("name") or default_name(part))),
        part=part,
        data=Path(str(node["data"])) if node.get("data") else None,
        device=choose_device(str(node.get("device") or "auto")),
        state_folder=Path(state) if state else None,
        wait_for_disk=not node.get("forget-on-power-loss"),
        local_density=None if node.get("local-density", "") == "" else float(node["local-density"]),
        loader_workers=None if node.get("loader-workers", "") == "" else int(node["loader-workers"]),
    )
    return Participant.join(run.experiment, station, run.name)


class Resident:
    """The participant of the current run, kept between messages, and while the server is restarted."""

    def __init__(self) -> None:
        self._run_id: int | None = None
        self._run = ""
        self._participant: Participant | None = None
        self.on_step: StepHeard = lambda number, done, of: None
        self.on_run: Callable[[Experiment], None] = lambda experiment: None  # hears what is asked for, before it is

    def __call__(self, context: Context) -> Participant:
        """Return the participant of a message's run."""
        if self._participant is None or self._run_id != context.run_id:
            run = run_of(context)
            if self._participant is None or self._run != run.name:
                self.on_run(run.experiment)
                self._participant = participant_of(context, run)
                self._participant.on_step = self.on_step
            self._run, self._run_id = run.name, context.run_id
        return self._participant


def forgetful_participant_of(context: Context) -> Participant:
    """Build the participant for one message only, which must find its memory on disk."""
    node = context.node_config
    if node.keys() == SIMULATED:  # nobody owns it; elsewhere no server says where to write
        node["state"] = context.run_config.get("state", "")
    if not node.get("state"):
        raise PublicError('this node forgets everything between messages: give it a folder with state="FOLDER"')
    return participant_of(context, run_of(context))


def _part(node: Mapping[str, object]) -> Part | None:
    """Read our own `partition`, or what Flower's simulation calls it."""
    if node.get("partition"):
        return Part.read(str(node["partition"]))
    if "partition-id" in node and "num-partitions" in node:
        return Part.read(f"{node['partition-id']}/{node['num-partitions']}")
    return None


def _reason(error: BaseException, say: Say) -> str:
    """Return what the server may know of an error; what may quote private data is for this machine's owner only."""
    if isinstance(error, MessageError):  # of what the server itself has said
        return str(error)
    if isinstance(error, UserError):
        if error.is_of_own_code and error.__cause__ is not None:
            _tell_traceback("".join(traceback.format_exception(error.__cause__)))
        if error.public != str(error):
            say(str(error))
        return error.public
    if is_out_of_memory(error):
        say(str(error))
        return "this client has not enough memory for that (see --memory-limit)"
    _tell_traceback("".join(traceback.format_exception(error)))
    return f"an unexpected {type(error).__name__}; the client's log says more"


def _code(error: BaseException) -> int:
    match error:
        case ForgottenError():
            return CLIENT_FORGOT
        case NoRoomError() | NotKeptError():
            return CLIENT_CANNOT_NOW
        case _:
            return CLIENT_FAILED


def _say(text: str) -> None:
    """Print a line; a function of this module, as Flower's simulation cannot hand `print` itself to its workers."""
    print(one_line(text), flush=True)  # noqa: T201 - where a SuperNode logs


def _write_traceback(text: str) -> None:
    sys.stderr.writelines(f"{one_line(line)}\n" for line in text.splitlines())  # it may quote what the server said
    sys.stderr.flush()


_tell_traceback = sparing(_write_traceback, 1, 60.0)  # a server can cause the same one for ever


app = make_app(forgetful_participant_of, _say)
