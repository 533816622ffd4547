"""Whatever frames a client sends, in whatever order: it is cut off with a reason, and the others do not notice."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue

import grpc
import pytest
from flwr.app import Message

from client.link import Link
from common.experiment.files import load_experiment
from common.messages.content import arrays_of, content_of, head_of
from common.messages.flower import SOFTWARE
from common.messages.messages import (
    Introduction,
    Run,
    message_to,
    pack_introduction,
    pack_introduction_question,
)
from common.messages.messages_pb2 import Answer, FromClient, FromServer, Held, Hello, Progress, Reply
from common.messages.messages_pb2 import Report as ReportMessage
from common.program.bundle import Bundle
from common.storage.spool import Spool
from server.keys.folder import Keys
from server.link import desk, service, stream
from server.link.admission import Admission
from server.link.grid import LinkGrid
from server.link.hub import Hub
from server.link.limits import Limit
from strategies.flower.terms import Terms
from tests.harness.memory import resident_bytes
from tests.harness.processes import client_process, deploy
from tests.harness.raw_stream import RawStream, channel_to

FRAMES = 20_000
LONG = b"\xa2\x06\xac\x02" + bytes(300)  # a field that nobody knows, of 300 bytes
MANY = 30
LARGE_BYTES = 50_000_000
RUN = Run(experiment=load_experiment("digits"), name="x")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def grid(said: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[LinkGrid]:
    """A run in the clear; nothing may go wrong in its loop that is only logged."""
    monkeypatch.setattr(service, "HELLO_SECONDS", 1.0)
    monkeypatch.setattr(stream, "END_SECONDS", 0.5)
    with Hub("127.0.0.1:0", say=said.append) as hub, hub.run(RUN) as grid:
        grid.summary = hub.address
        yield grid
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def joined(grid: LinkGrid, name: str = "mallory", **hello: object) -> RawStream:
    return RawStream.in_the_clear(grid.summary).hello(name, **hello)


def asked(grid: LinkGrid, one: RawStream) -> int:
    """Let the server ask a client something, and return the task."""
    one.hear_until("welcome")
    (node,) = grid.get_node_ids()
    grid.push_messages([message_to(node, "introduce", pack_introduction_question())])
    return one.hear_until("task").task.task


def is_served(grid: LinkGrid) -> bool:
    """Say whether an honest client is asked and heard."""
    with joined(grid, "honest") as honest:
        honest.hear_until("welcome")
        node = next(one for one in grid.get_node_ids() if grid.client_name(one) == "honest")
        (sent,) = grid.push_messages([message_to(node, "introduce", pack_introduction_question())])
        honest.answer(honest.hear_until("task").task.task, b"here")
        reply = reply_to(grid, sent)
        return head_of(reply.content) == b"here"


def reply_to(grid: LinkGrid, sent: str) -> Message:
    """Wait for a reply, or for the reason why there is none."""
    replies: list[Message] = []
    while not replies:
        grid.wait_for_reply(10)
        replies += grid.pull_messages([sent])
    grid.forget([sent])
    return replies[0]


def one_answer(task: int, **fields: object) -> list[bytes]:
    return [FromClient(answer=Answer(task=task, **fields)).SerializeToString()]  # type: ignore[arg-type]


def piece(count: int) -> list[bytes]:
    return [FromClient(piece=bytes(count)).SerializeToString()]


PROGRESS = FromClient(progress=Progress(task=1, done=1, of=2)).SerializeToString()

# What a client sends after the server has asked it something, and why it is cut off.
VIOLATIONS: dict[str, Callable[[int], list[bytes]]] = {
    "a frame that cannot be read": lambda _: [b"\xff\xff\xff"],
    "a frame that does not belong here (None)": lambda _: [b""],
    "a frame that does not belong here (hello)": lambda _: [FromClient(hello=Hello()).SerializeToString()],
    "a piece that nobody has announced": lambda _: piece(10),
    "pieces that are too small": lambda task: one_answer(task, payload_bytes=5_000) + piece(1),
    "a piece that is longer than its answer": lambda task: one_answer(task, payload_bytes=9, piece=bytes(10)),
    "a reply of 9223372036854775808 bytes where": lambda task: one_answer(task, payload_bytes=1 << 63),
    "a reply of 18446744073709551615 bytes where": lambda _: one_answer(1, payload_bytes=(1 << 64) - 1),
    "an answer that goes on from where it never": lambda task: one_answer(task, payload_bytes=9, offset=5),
    "an answer before the one before it": lambda task: 2 * one_answer(task, payload_bytes=5_000, piece=bytes(1_000)),
    "more answers than it was asked for": lambda _: MANY * one_answer(1),
    "a time beyond all bounds": lambda task: one_answer(task, download_seconds=float("nan")),
    "frames of progress per second": lambda _: 2 * MANY * [PROGRESS],
    "a frame of progress that is too long": lambda _: [PROGRESS + LONG],
}


@pytest.mark.parametrize("why", VIOLATIONS)
def test_who_breaks_the_rules_is_told_why_and_stays_out_for_a_while(
    grid: LinkGrid, said: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "RETURN_SECONDS", 0.2)
    with joined(grid) as mallory:
        for data in VIOLATIONS[why](asked(grid, mallory)):
            mallory.say_bytes(data)
        assert why in mallory.hear_until("refused").refused.reason
    with joined(grid) as again:
        assert "broke the rules of the link, and stays out" in again.hear_until("refused").refused.reason
    assert [why in line for line in said] == [True]
    time.sleep(0.3)
    assert not grid.get_node_ids(), "nobody waits for its return"
    assert is_served(grid)


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        ({"name": "a\nb"}, "printable"),
        ({"name": "\x1b[31m"}, "printable"),
        ({"name": ""}, "printable"),
        ({"name": "x" * 101}, "at most 100"),
        ({"name": "a", "identity": ""}, "identity"),
        ({"name": "a", "identity": "x" * 101}, "identity"),
        ({"name": "a", "software": "\x07"}, "it runs other, but"),
        ({"name": "a", "device": "x" * 5_000}, "a Hello of 50"),
    ],
)
def test_a_hello_that_cannot_be_is_refused(grid: LinkGrid, hello: dict[str, str], why: str) -> None:
    with joined(grid, **hello) as mallory:
        assert why in mallory.hear_until("refused").refused.reason
    assert is_served(grid)


@pytest.mark.parametrize(("first", "why"), [(PROGRESS, "no Hello"), (b"\xff", "no Hello"), (None, "it said nothing")])
def test_whoever_does_not_say_hello_first_is_cut_off(grid: LinkGrid, first: bytes | None, why: str) -> None:
    with RawStream.in_the_clear(grid.summary) as mallory:
        if first is not None:
            mallory.say_bytes(first)
        assert why in mallory.hear_until("refused").refused.reason


def test_a_frame_beyond_all_bounds_ends_the_stream(grid: LinkGrid) -> None:
    with joined(grid) as mallory:
        mallory.hear_until("welcome")
        mallory.say_bytes(bytes(3_000_000))
        assert mallory.hear() is None
        assert mallory.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert is_served(grid)


def test_a_bomb_of_zeros_is_not_unpacked(grid: LinkGrid) -> None:
    """gRPC may compress what it sends: here 200 MB to 0.2."""
    bomb, before = bytes(200_000_000), resident_bytes(os.getpid())
    with (
        grpc.insecure_channel(grid.summary, [("grpc.max_send_message_length", -1)], grpc.Compression.Gzip) as channel,
        RawStream(Link.in_the_clear(grid.summary), channel) as mallory,
    ):
        mallory.hello("mallory").hear_until("welcome")
        mallory.say_bytes(bomb)
        assert mallory.hear() is None
        assert mallory.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert resident_bytes(os.getpid()) < before + 100_000_000
    assert is_served(grid)


def test_a_client_that_comes_all_the_time_has_to_wait(grid: LinkGrid) -> None:
    with channel_to(Link.in_the_clear(grid.summary)) as channel:
        told = [first_word(grid, channel) for _ in range(service.MOST_STREAMS_A_MINUTE + 5)]
    assert told[: service.MOST_STREAMS_A_MINUTE] == ["welcome"] * service.MOST_STREAMS_A_MINUTE
    assert all("came more than 60 times in a minute" in one for one in told[service.MOST_STREAMS_A_MINUTE :])
    assert len(grid.get_node_ids()) == 1
    assert is_served(grid)


def test_ever_new_names_are_no_more_clients_than_there_is_room_for(
    grid: LinkGrid, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_CLIENTS", 50)
    with channel_to(Link.in_the_clear(grid.summary)) as channel:
        told = [first_word(grid, channel, f"name-{number}") for number in range(60)]
        assert told == ["welcome"] * 50 + ["there are 50 clients already"] * 10
        assert first_word(grid, channel, "name-0") == "welcome", "who is known comes back"
    assert len(grid.get_node_ids()) == 50
    assert len([one for one in said if "put off" in one]) == 1


def first_word(grid: LinkGrid, channel: grpc.Channel, name: str = "mallory") -> str:
    with RawStream(Link.in_the_clear(grid.summary), channel).hello(name) as one:
        frame = one.hear()
        assert frame is not None
        return frame.refused.reason or str(frame.WhichOneof("frame"))


def test_of_two_with_one_identity_the_newer_stays_and_of_two_identities_the_older(grid: LinkGrid) -> None:
    with ExitStack() as stack:
        older = stack.enter_context(joined(grid, "a"))
        older.hear_until("welcome")
        newer = stack.enter_context(joined(grid, "a"))
        refused = older.hear_until("refused").refused
        assert refused.final
        assert "has taken its place" in refused.reason
        older.say_bytes(b"\xff")  # which does the newer no harm
        newer.hear_until("welcome")
        with joined(grid, "a", identity="another") as other:
            assert "another client is called a already" in other.hear_until("refused").refused.reason
        assert len(grid.get_node_ids()) == 1
        assert newer.call.is_active()


def test_a_client_that_does_not_read_is_cut_off_and_takes_little_memory(
    grid: LinkGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STALL_SECONDS", 2.0)
    before = resident_bytes(os.getpid())
    with joined(grid) as mallory:
        mallory.hear_until("welcome")
        (node,) = grid.get_node_ids()
        content = content_of(b"", arrays_of(Spool(LARGE_BYTES)))
        (sent,) = grid.push_messages([message_to(node, "train", content)])
        assert is_served(grid)
        assert resident_bytes(os.getpid()) < before + LARGE_BYTES / 2
        assert "does not read" in str(reply_to(grid, sent).error.reason)


def test_what_is_taken_by_nobody_does_not_keep_the_strategy_busy(grid: LinkGrid) -> None:
    with joined(grid) as client:
        client.answer(asked(grid, client), b"")
        time.sleep(0.3)  # it is here, and nobody takes it
        grid.pull_messages(["1"])
        started = time.monotonic()
        grid.wait_for_reply(0.5)
        assert time.monotonic() - started >= 0.5


def test_a_limit_lets_pass_so_many_and_remembers_no_more_than_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit(2, 0.2)
    assert [limit.allows("a") for _ in range(4)] == [True, True, False, False]
    assert 0 < limit.seconds_left("a") <= 0.2
    assert limit.seconds_left("b") == 0
    time.sleep(0.25)
    assert limit.seconds_left("a") == 0
    assert limit.allows("a")
    monkeypatch.setattr("server.link.limits.MOST_REMEMBERED", 10)
    assert sum(limit.allows(number) for number in range(100)) == 9
    assert len(limit._passed) == 10
    assert limit.allows("a"), "who is known is not forgotten for others"


class Fuzzer:
    """Sends frames that are good, nearly good, and anything else; seeded, so that it can be done again."""

    def __init__(self, seed: int, name: str) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._name = name
        self.leaving = threading.Event()
        self.sent = 0
        self.task = 1  # the last that it was asked

    def greeting(self) -> bytes:
        hello = Hello(software=SOFTWARE, name=self._name, identity="m")
        return bytes(FromClient(hello=hello).SerializeToString())

    def frame(self) -> bytes:
        chance = self._random
        kind = chance.choice([self._hello, self._answer, self._answer, self._piece, self._progress, self._goodbye])
        data = bytes(kind().SerializeToString())
        match chance.randrange(6):
            case 0:
                return chance.randbytes(chance.randrange(200))
            case 1:
                return self._damaged(data)
            case 2:
                return data[: chance.randrange(len(data) + 1)]
            case 3:
                return data + self._damaged(data)
            case _:
                return data

    def _damaged(self, data: bytes) -> bytes:
        bad = bytearray(data)
        for _ in range(self._random.randrange(1, 5)):
            if bad:
                bad[self._random.randrange(len(bad))] = self._random.randrange(256)
        return bytes(bad)

    def _number(self) -> int:
        edges = (0, 1, 10, 999, 1_000, 1_001, 3_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 1 << 63, (1 << 64) - 1)
        return self._random.choice(edges) if self._random.random() < 0.8 else self._random.getrandbits(64)

    def _task(self) -> int:
        return self._random.choice((self.task, self.task, self.task, self.task + 1, self._number()))

    def _hello(self) -> FromClient:
        held = Held(task=self._task(), bytes=self._number(), checksum=self._random.getrandbits(32))
        return FromClient(hello=Hello(software=SOFTWARE, name=self._name, identity="m", held=held))

    def _answer(self) -> FromClient:
        told = ReportMessage(client=self._name, round=self._random.randrange(5), train_seconds=self._random.random())
        replies = (b"", Reply(report=told).SerializeToString(), self.introduction(), self._random.randbytes(20))
        count = self._random.choice((0, 10, 300, 1_000, 2_600))
        size = self._random.choice((count, count, count + 2_000, self._number()))
        answer = Answer(
            task=self._task(),
            reply=self._random.choice(replies),
            payload_bytes=size,
            offset=self._random.choice((0, 0, 0, self._number())),
            download_seconds=self._random.choice((0.0, 1.0, -1.0, float("inf"))),
            piece=self._random.randbytes(count),
        )
        if self._random.random() < 0.1:
            answer.failure.code = self._random.randrange(5)  # type: ignore[assignment]
            answer.failure.reason = "\x1b\n" * self._random.randrange(1_000)
        return FromClient(answer=answer)

    def introduction(self) -> bytes:
        return head_of(pack_introduction(Introduction(client=self._name, identity="m")))

    def _piece(self) -> FromClient:
        return FromClient(piece=self._random.randbytes(self._random.choice((0, 1, 1_000, 2_000, 60_000))))

    def _progress(self) -> FromClient:
        return FromClient(progress=Progress(task=self._task(), done=self._number(), of=self._number()))

    @staticmethod
    def _goodbye() -> FromClient:
        return FromClient(goodbye={})

    def attack(self, link: Link) -> None:
        """Come again and again, answer properly who we are, and then send anything."""
        with channel_to(link) as channel:
            while not self.leaving.is_set():
                with RawStream(link, channel) as one:
                    if self._random.random() < 0.1:
                        one.say_bytes(self.frame())
                        self.sent += 1
                    else:
                        one.say_bytes(self.greeting())
                        self._go_on(one)

    def _go_on(self, one: RawStream) -> None:
        heard: SimpleQueue[FromServer | None] = SimpleQueue()
        reading = threading.Thread(target=lambda: deque(map(heard.put, iter(one.hear, None)), 0))
        reading.start()
        if self._random.random() < 0.5 and self._hears_task(heard):
            one.answer(self.task, self.introduction())
            if self._random.random() < 0.5:
                self._hears_task(heard)  # to train
        for _ in range(self._random.randrange(1, 40)):
            one.say_bytes(self.frame())
            self.sent += 1
        if self._random.random() < 0.8:
            one.say_bytes(b"\xff")  # so that it is cut off for sure
            reading.join(1)
        one.call.cancel()
        reading.join()

    def _hears_task(self, heard: SimpleQueue[FromServer | None]) -> bool:
        try:
            while (frame := heard.get(timeout=0.03)) is not None:
                if frame.HasField("task"):
                    self.task = frame.task.task
                    return True
        except Empty:
            pass
        return False


def spools_of_this_process() -> int:
    """Return how many temporary files without a name are open."""
    count = 0
    for one in Path("/proc/self/fd").iterdir():
        try:
            count += one.readlink().name.endswith("(deleted)")
        except OSError:
            continue
    return count


class Script:
    """Stands for a stream of gRPC: brings the frames of a fuzzer, and nothing after so many."""

    def __init__(self, fuzzer: Fuzzer, frames: list[bytes]) -> None:
        self._fuzzer = fuzzer
        self._frames = iter(frames)
        self.written: list[FromServer] = []

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    def auth_context(self) -> dict[str, object]:
        return {}

    def add_done_callback(self, _: object) -> None:
        """Never call it: what is counted until the end is not what this is about."""

    async def read(self) -> object:
        data = next(self._frames, grpc.aio.EOF)
        self._fuzzer.sent += data is not grpc.aio.EOF
        return data

    async def write(self, data: bytes) -> None:
        frame = FromServer.FromString(data)
        self.written.append(frame)
        if frame.HasField("task"):
            self._fuzzer.task = frame.task.task


def test_twenty_thousand_frames_are_each_taken_or_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network, so that each frame that is counted was read: nothing is raised, nothing stays."""
    monkeypatch.setattr(service, "PENALTY_SECONDS", 0.0)
    monkeypatch.setattr(service, "MOST_STREAMS_A_MINUTE", 10**9)
    monkeypatch.setattr(service, "MOST_STREAMS_OF_A_PEER", 10**9)
    said: list[str] = []
    reasons: Counter[str] = Counter()
    fuzzer, table = Fuzzer(2, "mallory"), LinkGrid(lambda action: action())
    office = service.Service(table, Admission(None, said.append), said.append)
    question = pack_introduction_question()

    async def attack() -> None:
        while fuzzer.sent < FRAMES:
            sent = table.push_messages([message_to(node, "introduce", question) for node in table.get_node_ids()])
            script = Script(fuzzer, [fuzzer.greeting(), *(fuzzer.frame() for _ in range(20))])
            await office._work(None, script)
            reasons.update(frame.refused.reason for frame in script.written if frame.HasField("refused"))
            table.pull_messages(sent)
            table.forget(sent)

    started = time.monotonic()
    asyncio.run(attack())
    assert len(said) <= 1 + (time.monotonic() - started) / service.SECONDS_BETWEEN_WORDS
    assert not any("went wrong" in line for line in said)
    assert len(reasons) >= 10, "the fuzzer gets everywhere"
    assert not table._answered
    assert not table._kept
    assert len(table._seats) <= 1


@pytest.mark.slow
def test_twenty_thousand_frames_of_anything_with_a_good_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: list[str]
) -> None:
    monkeypatch.setattr(service, "PENALTY_SECONDS", 0.0)
    monkeypatch.setattr(service, "MOST_STREAMS_A_MINUTE", 10**9)
    keys = Keys.init(tmp_path / "keys", ["127.0.0.1"], 9092)
    bundles = [keys.add(f"client-{index}") for index in range(3)]
    experiment = load_experiment("digits", ["clients=3", "rounds=20", "schedule.period=3"])
    terms = Terms(minimum_clients=2, deadline_seconds=2)
    with Hub("127.0.0.1:0", keys, said.append) as hub:
        link = Link.of_bundle(Bundle.read(bundles[2]), hub.address)
        honest = [(str(bundles[index]), "--server", hub.address, "--partition", f"{index}/3") for index in (0, 1)]
        fuzzer = Fuzzer(1, "client-2")
        attacking = threading.Thread(target=fuzzer.attack, args=(link,))
        with client_process(*honest[0], log=tmp_path / "0.log"), client_process(*honest[1], log=tmp_path / "1.log"):
            attacking.start()
            runs = [deploy(hub, experiment, terms)]
            before, files = resident_bytes(os.getpid()), spools_of_this_process()
            while fuzzer.sent < FRAMES:
                assert attacking.is_alive()
                runs.append(deploy(hub, experiment, terms))
            fuzzer.leaving.set()
            attacking.join()
        for run in runs:
            assert {name for record in run.records for name in record.missing_names} <= {"client-2"}
            assert run.model.isfinite().all()
        assert resident_bytes(os.getpid()) < before + 50_000_000
        assert spools_of_this_process() <= files
        kept = hub.grid
        assert not kept._answered
        assert not kept._kept
        assert len(kept._seats) <= 3
    assert len(said) <= 10, said  # as many as minutes, whatever the machine
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
