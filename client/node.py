"""The resident node: one long-lived client on a stream of its own.

It keeps data, model and control variate in memory between messages, and runs only the code that is installed on its own
machine. When its stream breaks it comes back, for ever; what was under way goes on where it was.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

import grpc
from flwr.app import Context, Error, RecordDict

from client.app import Answering
from client.handshake import in_words, what_is_wrong
from client.link import Link
from client.screen import Standing
from client.stream import Hand, Pace, Stream, Summary, begun
from common.errors import MessageError, UserError
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.messages.content import content_of, head_of, payload_of
from common.messages.flower import SOFTWARE
from common.messages.messages_pb2 import Failure, FromServer, Held, Hello, Progress, Refused, Welcome
from common.messages.messages_pb2 import Task as TaskFrame
from common.messages.stream import FAILURES, in_thread_if_large
from common.say import Say
from common.storage.disk import NoRoomError

FIRST_WAIT_SECONDS = 0.25
LONGEST_WAIT_SECONDS = 15.0
LEAVE_SECONDS = 1.0  # for which an answer on its way may still be sent
GOODBYE_SECONDS = 0.5
PROGRESS_SECONDS = 0.5
LARGEST_TASK_BYTES = 1 << 36  # no server is believed to send more
MOST_TASKS = 20  # that a server leaves with a client, one of which it does
MOST_LINES_REMEMBERED = 50


class Workers:
    """Threads that compute, beside the loop in which frames come and go; they do not keep a process from ending."""

    def __init__(self, count: int) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._run, name=f"worker-{number}", daemon=True).start()

    def give(self, work: Callable[[], None]) -> None:
        """Let one of the threads do something that raises nothing."""
        self._work.put(work)

    def _run(self) -> None:
        while True:
            self._work.get()()


class RefusedError(Exception):
    """The server does not take this client now."""


class StreamEndedError(Exception):
    """The server has ended the stream: mostly because its run is over."""


class ResidentNode:
    """One client: joins, serves, comes back when the link breaks, until it is told to stop."""

    def __init__(
        self,
        link: Link,
        channel: grpc.aio.Channel,
        workers: Workers,
        answer: Answering,
        config: dict[str, bool | float | int | str],
        identity: str,
        say: Say,
        upload_kbps: float | None = None,
    ) -> None:
        self._link = link
        self._channel = channel
        self._workers = workers
        self._answer_to = answer
        self._config = config
        self._identity = identity
        self._say = say
        self._pace = Pace(upload_kbps)
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._stream: Stream | None = None
        self._context: Context | None = None
        self._runs = 0
        self._joined = 0  # how often
        self._said: set[str] = set()  # since a task was last done
        self._summary = Summary()
        self._hands: dict[int, Hand] = {}  # tasks that may be asked for again, the newest last
        self._downloading: Hand | None = None
        self._left_bytes = 0  # of the payload that was announced last
        self._to_do: deque[Hand] = deque()
        self._working_on: Hand | None = None
        self._step = (0, 0)  # how far the training at hand is: done, of
        self._round = self._rounds = 0  # of the run that we are in
        self._is_between_runs = False  # the last one ended as it should, and there is none now
        self._told = Progress()  # the last

    async def run(self) -> None:
        """Serve until stopped; a UserError is a reason to give up."""
        wait = FIRST_WAIT_SECONDS
        while not self._stopping.is_set():
            joined_before, is_good = self._joined, True
            try:
                await self._converse_until_stopped()
            except NoRoomError as error:
                self._say_once(f"{error}; trying again")
            except UserError:
                raise
            except Exception as error:  # whatever else it was, a client that stays is worth more than one that ends
                is_good = not isinstance(error, MessageError)  # one that breaks the rules will do so again
                reason = await self._reason(error)
                if not (self._is_between_runs and isinstance(error, (StreamEndedError, grpc.RpcError))):
                    self._say_once(f"{reason}; trying again")
            is_good = is_good and self._joined > joined_before
            wait = FIRST_WAIT_SECONDS if is_good else min(2 * wait, LONGEST_WAIT_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def note_run(self, experiment: Experiment) -> None:
        """Say what a new run asks of this client, before its data is loaded; called where it computes."""
        self._rounds = experiment.rounds
        task = plugins.name_of(experiment.task.plugin_package, type(experiment.task))
        algorithm = plugins.name_of(experiment.algorithm.plugin_package, type(experiment.algorithm))
        size = f"{experiment.rounds} rounds, {experiment.clients} clients"
        self._say(f"takes part in {experiment.name}: task {task}, method {algorithm}, {size}")

    def note_step(self, number: int, done: int, of: int) -> None:
        """Note how far the training at hand is; called where it computes."""
        self._round, self._step = number, (done, of)

    @property
    def standing(self) -> Standing:
        """Return how far this client is, for those who watch."""
        at_hand = self._at_hand
        return Standing(
            doing=self._doing(at_hand),
            round=self._round,
            rounds=self._rounds,
            done=at_hand.done if at_hand else 0,
            of=at_hand.of if at_hand else 0,
            bytes_up=self._summary.bytes_up,
            bytes_down=self._summary.bytes_down,
        )

    def _doing(self, at_hand: Progress | None) -> str:
        if at_hand is not None and at_hand.of:
            return "downloading" if at_hand.phase == Progress.DOWNLOADING else "training"
        if at_hand is not None and not self._round:
            return "preparing"
        if self._stream is None:
            return f"waiting for the server at {self._link.address}"
        return "waiting for the other clients" if self._rounds else "waiting for a run"

    @property
    def _at_hand(self) -> Progress | None:
        """Return how far the task at hand is, if there is one."""
        if (hand := self._downloading) is not None:
            phase, done, of = Progress.DOWNLOADING, hand.incoming.received, hand.incoming.size
            return Progress(task=hand.id, phase=phase, done=done, of=of)
        if (hand := self._working_on) is not None:
            done, of = self._step
            return Progress(task=hand.id, phase=Progress.TRAINING, done=done, of=of)
        return None

    def tell_progress(self) -> None:
        """Tell how far the task at hand is, if it is further than when this was last called."""
        progress = self._at_hand
        if self._stream is not None and progress and progress.of and progress != self._told:
            self._told = progress
            self._stream.progress(progress)

    def stop(self) -> None:
        """Leave as soon as an answer that is on its way is sent."""
        self._stopping.set()

    async def _converse_until_stopped(self) -> None:
        conversation, stopping = asyncio.ensure_future(self._converse()), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({conversation, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if conversation.done():
                conversation.result()
            elif self._stream is not None:
                await self._take_leave(self._stream, conversation)
        finally:
            for one in (conversation, stopping):
                one.cancel()
            await asyncio.gather(conversation, stopping, return_exceptions=True)

    async def _take_leave(self, stream: Stream, conversation: asyncio.Future[None]) -> None:
        """Let an answer that is done go out, if that does not take long, and say goodbye; what is not done is not."""
        end = time.monotonic() + LEAVE_SECONDS
        while any(hand.is_wanted and hand.is_done for hand in self._hands.values()) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        stream.close()
        await asyncio.wait({conversation}, timeout=GOODBYE_SECONDS)

    async def _converse(self) -> None:
        name, device = str(self._config["name"]), str(self._config.get("device", ""))
        newest = next(reversed(self._hands.values()), None)
        held = await asyncio.to_thread(newest.incoming.held, newest.id) if newest else None
        self._downloading, self._left_bytes = None, 0
        stream = Stream(self._channel, self._pace, self._summary)
        try:
            stream.open(Hello(software=SOFTWARE, name=name, identity=self._identity, device=device, held=held))
            self._stream = stream
            await stream.frames(self._take)
        finally:
            self._stream = None
            stream.abandon()
        raise StreamEndedError

    async def _take(self, frame: FromServer) -> None:
        match frame.WhichOneof("frame"):
            case "task":
                await self._begin(frame.task)
            case "piece":
                if not frame.piece:
                    raise MessageError("a piece of nothing")
                await self._add(frame.piece)
            case "cancel":
                self._drop(frame.cancel.task)
            case _:
                self._hear(frame)

    def _hear(self, frame: FromServer) -> None:
        """Note what the server says of itself, or of us."""
        match frame.WhichOneof("frame"):
            case "welcome":
                self._join(frame.welcome)
            case "wait":
                self._joined += 1
                if not self._is_between_runs:
                    self._say_once(f"joined the server at {self._link.address}; waiting: {frame.wait.reason}")
            case "refused":
                self._leave(frame.refused)
            case "finished":
                self._is_between_runs = True
                self._round = self._rounds = 0
                self._say(self._summary.told(frame.finished))
            case _:
                raise MessageError("the server sent a frame that this version does not know")

    def _leave(self, refused: Refused) -> None:
        if refused.final:
            raise UserError(f"the server at {self._link.address} refused this client: {refused.reason}")
        raise RefusedError(refused.reason)

    def _join(self, welcome: Welcome) -> None:
        """Prepare for a run, or go on with the one that we were in."""
        self._joined += 1
        self._is_between_runs = False
        self._say_once(f"joined the server at {self._link.address}")
        config: dict[str, bool | float | int | str] = {"experiment": welcome.experiment, "run": welcome.run}
        if self._context is None or self._context.run_config != config:
            self._runs += 1
            self._context = Context(
                run_id=self._runs, node_id=1, node_config=self._config, state=RecordDict(), run_config=config
            )

    async def _begin(self, frame: TaskFrame) -> None:
        """Take a task: a new one, or one that a broken stream has interrupted."""
        if self._downloading is not None:
            raise MessageError("a task before the one before it was complete")
        if frame.payload_bytes > LARGEST_TASK_BYTES or frame.offset > frame.payload_bytes:
            raise MessageError(f"a task of {frame.payload_bytes} bytes, from {frame.offset} on")
        hand = self._hands.get(frame.task)
        if hand is None or not (hand.is_here or hand.goes_on(frame)):
            hand = self._new_hand(frame)
        hand.is_wanted = True
        hand.held_there = Held(task=frame.held.task, bytes=frame.held.bytes, checksum=frame.held.checksum)
        self._downloading = None if hand.is_here else hand
        self._left_bytes = frame.payload_bytes - frame.offset
        await self._add(frame.piece)
        if hand.is_done:
            self._answer(hand)

    def _new_hand(self, frame: TaskFrame) -> Hand:
        self._hands = {one: hand for one, hand in self._hands.items() if not hand.is_done}
        if len(self._hands) >= MOST_TASKS or len(self._to_do) >= MOST_TASKS:
            raise MessageError(f"more than {MOST_TASKS} tasks at a time")
        hand = self._hands[frame.task] = begun(frame)
        return hand

    async def _add(self, piece: bytes) -> None:
        if len(piece) > self._left_bytes:
            raise MessageError("a piece that nobody has announced")
        self._left_bytes -= len(piece)
        hand = self._downloading
        if hand is None:
            return  # the rest of a task that was withdrawn, or that we have
        await in_thread_if_large(hand.incoming.size, hand.incoming.add, piece)
        if hand.incoming.is_complete:
            self._downloading, hand.is_here = None, True
            hand.download_seconds = time.monotonic() - hand.started
            self._to_do.append(hand)
            self._work()

    def _drop(self, task: int) -> None:
        hand = self._hands.pop(task, None)
        if hand is not None:
            hand.let_go()
            if self._downloading is hand:
                self._downloading = None
            if hand.is_done:
                self._say("the server no longer waits for this answer; it came too late")

    def _work(self) -> None:
        """Do one task after the other, whatever becomes of streams meanwhile."""
        while self._working_on is None and self._to_do:
            hand = self._to_do.popleft()
            if hand.is_wanted:
                self._working_on, self._step = hand, (0, 0)
                self._workers.give(partial(self._do, hand))

    def _do(self, hand: Hand) -> None:
        """Let the app answer a task; this is in a thread of its own."""
        started = time.monotonic()
        try:
            if self._context is None:
                raise MessageError("a task before there is a run")
            said = self._answer_to(content_of(hand.question, hand.incoming.payload), self._context)
            if isinstance(said, Error):
                hand.failure = Failure(code=FAILURES.get(said.code, Failure.FAILED), reason=said.reason)
                self._say(f"cannot do what the server asks: {said.reason}")
            else:
                hand.reply, hand.payload = head_of(said), payload_of(said)
        except BaseException as error:  # no thread must end by it
            known = str(error) if isinstance(error, MessageError) else f"an unexpected {type(error).__name__}"
            hand.failure = Failure(code=Failure.FAILED, reason=f"cannot answer: {known}")
        self._summary.note_task(time.monotonic() - started)
        with suppress(RuntimeError):  # the loop is closed: we have left
            self._loop.call_soon_threadsafe(self._note_done, hand)

    def _note_done(self, hand: Hand) -> None:
        hand.is_done, self._working_on = True, None
        self._said.clear()
        self._answer(hand)
        self._work()

    def _answer(self, hand: Hand) -> None:
        """Send an answer, if there is a stream; else the server will ask for it again."""
        if self._stream is not None and hand.is_wanted:
            self._stream.answer(hand)

    def _say_once(self, text: str) -> None:
        """Say something that may be all that goes on here: coming, and going for the same reason."""
        if text not in self._said:
            if len(self._said) >= MOST_LINES_REMEMBERED:
                self._said.clear()
            self._said.add(text)
            self._say(text)

    async def _reason(self, error: Exception) -> str:
        if isinstance(error, (RefusedError, MessageError)):
            return f"the server at {self._link.address} does not take this client now: {error}"
        if isinstance(error, StreamEndedError):
            return f"the server at {self._link.address} has left"
        if not isinstance(error, grpc.RpcError):
            return f"something went wrong here ({error!r})"
        code, details = error.code(), error.details() or ""
        if code is not grpc.StatusCode.UNAVAILABLE:
            return f"lost the server at {self._link.address} ({in_words(details)})"
        wrong = None if self._joined else await asyncio.to_thread(what_is_wrong, self._link)
        if wrong:  # and it will not change
            raise UserError(f"cannot join the server at {self._link.address}: {wrong}")
        return f"waiting for the server at {self._link.address} ({in_words(details)})"
