"""The resident node: one long-lived client on a stream of its own.

It keeps data, model and control variate in memory between messages, and runs only the code that is installed on its own
machine. When its stream breaks it comes back, for ever; what was under way goes on where it was.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import grpc
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.handshake import what_is_wrong
from client.link import Link
from client.stream import Hand, Pace, Stream, begun
from common.errors import MessageError, UserError
from common.messages.content import arrays_of, content_of, head_of, payload_of
from common.messages.flower import SOFTWARE, begin_run, set_message_id
from common.messages.messages import message_type_of
from common.messages.messages_pb2 import Failure, FromServer, Held, Hello, Progress, Refused, Welcome
from common.messages.messages_pb2 import Task as TaskFrame
from common.messages.stream import FAILURES, STREAM_OPTIONS
from common.say import Say
from common.storage.disk import NoRoomError
from common.storage.spool import PIECE_BYTES

FIRST_WAIT_SECONDS = 0.25
LONGEST_WAIT_SECONDS = 15.0
LEAVE_SECONDS = 1.0  # for which an answer on its way may still be sent
GOODBYE_SECONDS = 0.5
PROGRESS_SECONDS = 0.5
LARGEST_TASK_BYTES = 1 << 36  # no server is believed to send more
MOST_TASKS = 20  # that a server leaves with a client, one of which it does
CHANNEL_OPTIONS = (
    *STREAM_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # a new connection is a new one, not a share in one that may be dead
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # how long an attempt may take
)


def channel_to(link: Link) -> grpc.aio.Channel:
    """Return a channel to the server, which several clients of a process may share."""
    options: list[tuple[str, int | str]] = list(CHANNEL_OPTIONS)
    if link.root_certificates is None:
        return grpc.aio.insecure_channel(link.address, options)
    options.append(("grpc.ssl_target_name_override", link.host))
    credentials = grpc.ssl_channel_credentials(link.root_certificates, link.private_key, link.certificate)
    return grpc.aio.secure_channel(link.address, credentials, options)


class Workers:
    """Threads that compute, beside the loop in which frames come and go; they do not keep a process from ending."""

    def __init__(self, count: int) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._run, name=f"worker-{number}", daemon=True).start()

    async def do(self, action: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the action returns
        """Run an action in one of the threads, and wait for what it returns."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def act() -> None:
            try:
                result, failure = action(), None
            except BaseException as error:  # a task's own code may raise anything, and a thread must not end by it
                result, failure = None, error if isinstance(error, Exception) else RuntimeError(repr(error))
            loop.call_soon_threadsafe(settle, result, failure)

        def settle(result: object, failure: Exception | None) -> None:
            if not future.cancelled():
                future.set_result(result) if failure is None else future.set_exception(failure)

        self._work.put(act)
        return await future

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
        app: ClientApp,
        config: dict[str, bool | float | int | str],
        identity: str,
        say: Say,
        upload_kbps: float | None = None,
    ) -> None:
        begin_run()
        self._link = link
        self._channel = channel
        self._workers = workers
        self._app = app
        self._config = config
        self._hello = Hello(
            software=SOFTWARE,
            name=str(config["name"]),
            identity=identity,
            device=str(config.get("device", "")),
        )
        self._say = say
        self._pace = Pace(upload_kbps)
        self._stopping = asyncio.Event()
        self._to_do: asyncio.Queue[Hand] = asyncio.Queue()
        self._hands: dict[int, Hand] = {}  # tasks that may be asked for again, the newest last
        self._downloading: Hand | None = None
        self._left_bytes = 0  # of the payload that was announced last
        self._stream: Stream | None = None
        self._context: Context | None = None
        self._runs = 0
        self._has_joined = False  # once; then whatever is wrong may mend
        self._last_word = ""
        self._last_trouble = ("", 0)  # and how many tasks had been done by then
        self._trained = Summary()
        self._last_progress = 0.0
        self._working_on: Hand | None = None
        self._step = self._told_step = (0, 0)  # how far the training at hand is: done, of

    async def run(self) -> None:
        """Serve until stopped; a UserError is a reason to give up."""
        working = asyncio.create_task(self._work())
        try:
            await self._stay_connected()
        finally:
            working.cancel()

    def note_step(self, done: int, of: int) -> None:
        """Note how far the training at hand is; called where it computes."""
        self._step = (done, of)

    def stop(self) -> None:
        """Leave as soon as the task at hand is answered."""
        self._stopping.set()

    async def _stay_connected(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while not self._stopping.is_set():
            was_in, is_good = self._trained.joined, True
            try:
                await self._until_stopped(self._converse())
            except UserError as error:
                if not isinstance(error, NoRoomError):
                    raise
                self._tell_trouble(f"{error}; trying again")
            except Exception as error:  # whatever else it was, a client that stays is worth more than one that ends
                is_good = not isinstance(error, MessageError)  # one that breaks the rules will do so again
                self._tell_trouble(f"{await self._reason(error)}; trying again")
            if is_good and self._trained.joined > was_in:
                wait = FIRST_WAIT_SECONDS
            else:
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            await self._until_stopped(asyncio.sleep(wait * random.uniform(0.5, 1.0)))  # noqa: S311 - no secret

    async def _until_stopped(self, action: Any) -> None:  # noqa: ANN401 - any coroutine
        """Wait for an action, or until we are told to leave."""
        acting, stopping = asyncio.ensure_future(action), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({acting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if acting.done():
                acting.result()
            elif self._stream is not None:
                await self._take_leave(self._stream, acting)
        finally:
            for one in (acting, stopping):
                one.cancel()
            await asyncio.gather(acting, stopping, return_exceptions=True)

    async def _take_leave(self, stream: Stream, conversation: asyncio.Future[None]) -> None:
        """Let an answer that is done go out, if that does not take long, and say goodbye; what is not done is not."""
        end = time.monotonic() + LEAVE_SECONDS
        while any(hand.is_wanted and hand.is_done for hand in self._hands.values()) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        stream.close()
        await asyncio.wait({conversation}, timeout=GOODBYE_SECONDS)

    async def _converse(self) -> None:
        stream = Stream(self._channel, self._pace)
        hello = Hello()
        hello.CopyFrom(self._hello)
        if self._hands:
            hello.held.CopyFrom(await asyncio.to_thread(_held, next(reversed(self._hands.values()))))
        self._downloading, self._left_bytes = None, 0
        try:
            stream.open(hello)
            self._stream = stream
            await stream.frames(self._take)
        finally:
            self._note_carried()
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
                self._note_joined()
                self._say_once(f"joined the server at {self._link.address}; waiting: {frame.wait.reason}")
            case "refused":
                self._leave(frame.refused)
            case "finished":
                self._finish(frame.finished.summary)
            case _:
                raise MessageError("the server sent a frame that this version does not know")

    def _finish(self, summary: str) -> None:
        """Say what this client did in a run, and be ready for the next."""
        self._note_carried()
        self._say(self._trained.told(summary))
        self._trained = Summary(joined=self._trained.joined)

    def _note_carried(self) -> None:
        if self._stream is not None:
            down, up = self._stream.take_carried()
            self._trained.bytes_down += down
            self._trained.bytes_up += up

    def _leave(self, refused: Refused) -> None:
        if refused.final:
            raise UserError(f"the server at {self._link.address} refused this client: {refused.reason}")
        raise RefusedError(refused.reason)

    def _note_joined(self) -> None:
        self._has_joined = True
        self._trained.joined += 1

    def _join(self, welcome: Welcome) -> None:
        """Prepare for a run, or go on with the one that we were in."""
        self._note_joined()
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
        if len(self._hands) >= MOST_TASKS or self._to_do.qsize() >= MOST_TASKS:
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
        if hand.incoming.size <= PIECE_BYTES:
            hand.incoming.add(piece)
        else:
            await asyncio.to_thread(hand.incoming.add, piece)
            self._say_how_far(hand)
        if hand.incoming.is_complete:
            self._downloading, hand.is_here = None, True
            hand.download_seconds = time.monotonic() - hand.started
            self._to_do.put_nowait(hand)

    def _say_how_far(self, hand: Hand) -> None:
        """Tell of a download that takes a while, now and then."""
        now = time.monotonic()
        if self._stream is not None and now - max(hand.started, self._last_progress) > PROGRESS_SECONDS:
            self._last_progress = now
            self._stream.progress(hand, Progress.DOWNLOADING, hand.incoming.received, hand.incoming.size)

    def _drop(self, task: int) -> None:
        hand = self._hands.pop(task, None)
        if hand is not None:
            hand.let_go()
            if self._downloading is hand:
                self._downloading = None
            if hand.is_done:
                self._say("the server no longer waits for this answer; it came too late")

    async def _work(self) -> None:
        """Do one task after the other, whatever becomes of streams meanwhile."""
        while True:
            hand = await self._to_do.get()
            if not hand.is_wanted:
                continue
            self._working_on = hand
            await self._workers.do(lambda: self._do(hand))  # noqa: B023 - it is awaited here
            self._working_on = None
            self._answer(hand)

    def _do(self, hand: Hand) -> None:
        """Let the app answer a task; this is in a thread of its own."""
        started = time.monotonic()
        self._step = (0, 0)
        try:
            if self._context is None:
                raise MessageError("a task before there is a run")
            reply = self._app(_message(hand), self._context)
            if reply.has_error():
                hand.failure = Failure(code=FAILURES.get(reply.error.code, Failure.FAILED), reason=reply.error.reason)
                self._say(f"cannot do what the server asks: {reply.error.reason}")
            else:
                hand.reply, hand.payload = head_of(reply.content), payload_of(reply.content)
        except BaseException as error:  # a message that no app of ours can read
            known = str(error) if isinstance(error, MessageError) else f"an unexpected {type(error).__name__}"
            hand.failure = Failure(code=Failure.FAILED, reason=f"cannot read what is asked: {known}")
        self._trained.tasks += 1
        self._trained.seconds += time.monotonic() - started
        hand.is_done = True

    def tell_progress(self) -> None:
        """Tell how far the task at hand is, if it is further than when this was last called."""
        hand, step = self._working_on, self._step
        if hand is not None and self._stream is not None and step not in ((0, 0), self._told_step):
            self._told_step = step
            self._stream.progress(hand, Progress.TRAINING, *step)

    def _answer(self, hand: Hand) -> None:
        """Send an answer, if there is a stream; else the server will ask for it again."""
        if self._stream is not None and hand.is_wanted:
            self._stream.answer(hand)

    def _say_once(self, text: str) -> None:
        if text != self._last_word:
            self._last_word = text
            self._say(text)

    def _tell_trouble(self, text: str) -> None:
        """Say what went wrong, unless it is all that goes on here: coming, and going for the same reason."""
        trouble = (text, self._trained.tasks)
        if trouble != self._last_trouble:
            self._last_trouble = trouble
            self._say_once(text)

    async def _reason(self, error: Exception) -> str:
        if isinstance(error, (RefusedError, MessageError)):
            return f"the server at {self._link.address} does not take this client now: {error}"
        if isinstance(error, StreamEndedError):
            return f"the server at {self._link.address} has left"
        if not isinstance(error, grpc.RpcError):
            return f"something went wrong here ({error!r})"
        code, details = error.code(), error.details() or ""
        if code is not grpc.StatusCode.UNAVAILABLE:
            return f"lost the server at {self._link.address} ({code.name}: {details})"
        wrong = None if self._has_joined else await asyncio.to_thread(what_is_wrong, self._link)
        if wrong:  # and it will not change
            raise UserError(f"cannot join the server at {self._link.address}: {wrong}")
        return f"waiting for the server at {self._link.address} ({details.rpartition('last error: ')[2]})"


@dataclass
class Summary:
    """What a client did in a run."""

    joined: int = 0
    tasks: int = 0
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0

    def told(self, summary: str) -> str:
        """Return what to say when a run is over."""
        carried = f"{self.bytes_up / 1000:.1f} kB up and {self.bytes_down / 1000:.1f} kB down"
        own = f"this client answered {self.tasks} times, with {carried}, in {self.seconds:.1f} s of work"
        return f"{summary}; {own}; waiting for the next run"


def _held(hand: Hand) -> Held:
    return hand.incoming.held(hand.id)


def _message(hand: Hand) -> Message:
    """Return a task as Flower's message."""
    payload = hand.incoming.payload
    content = content_of(hand.question, arrays_of(payload) if payload else None)
    message = Message(content, 1, message_type_of(hand.question))
    set_message_id(message, str(hand.id))
    return message
