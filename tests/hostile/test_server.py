"""A server that sends anything: the client says one line, keeps its disk and its memory, and stays for a better one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

import client.stream
from client.app import Answering
from client.link import Link
from client.node import MOST_TASKS, ResidentNode, Workers
from client.stream import channel_to
from common.messages.content import content_of, head_of
from common.messages.messages import pack_notice
from common.messages.messages_pb2 import Cancel, Finished, FromClient, FromServer, Wait
from common.say import Event, sparing
from common.storage.spool import PIECE_BYTES
from tests.harness.hostile_server import HostileServer, has_answered, honest, piece, saying, serving, task, welcome
from tests.harness.memory import resident_bytes
from tests.harness.processes import client_process, wait_until


def answer(content: RecordDict, _: Context) -> RecordDict:
    return content_of(b"done")


def heard_by_a_client(
    server: HostileServer, until: Callable[[], bool], answer: Answering = answer, kbps: float | None = None
) -> list[str]:
    """Let a client meet a server until something is so, and return what it has said."""
    said: list[str] = []

    async def meet(address: str) -> None:
        link = Link.in_the_clear(address)
        channel = channel_to(link)
        node = ResidentNode(link, channel, Workers(1), answer, {"name": "a"}, "i", said.append, kbps)
        running = asyncio.create_task(node.run())
        end = asyncio.get_running_loop().time() + 20
        while not until():
            assert not running.done(), "the client has given up"
            assert asyncio.get_running_loop().time() < end, said
            await asyncio.sleep(0.02)
        node.stop()
        await running
        await channel.close()

    with serving(server) as address:
        asyncio.run(meet(address))
    return said


# What a server says after its welcome, and what the client says of that.
FRAMES: dict[str, list[FromServer | bytes]] = {
    "a frame that cannot be read": [b"\xff\xff"],
    "a frame that this version does not know": [b""],
    "a piece that nobody has announced": [piece(10)],
    "a piece of nothing": [task(payload_bytes=10), piece(0)],
    "a piece that nobody has announced; trying": [task(payload_bytes=10, piece=bytes(11))],
    "a task of 1099511627776 bytes, from 0 on": [task(payload_bytes=1 << 40), *[piece()] * 5],
    "a task of 9223372036854775808 bytes": [task(payload_bytes=1 << 63)],
    "a task of 10 bytes, from 11 on": [task(payload_bytes=10, offset=11)],
    "goes on from where it never was": [task(payload_bytes=10, offset=5, piece=bytes(5))],
    "for a task of 60000000000 bytes": [task(payload_bytes=60_000_000_000), *[piece()] * 5],
    "before the one before it was complete": [task(1, payload_bytes=5_000), task(2)],
}


@pytest.mark.parametrize("line", FRAMES)
def test_a_client_says_one_line_and_stays(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.stream, "KEPT_FREE_BYTES", 1 << 60)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100_000_000_000}))

    hostile = saying(welcome(), *FRAMES[line])
    server = HostileServer(hostile, hostile, honest)
    said = heard_by_a_client(server, has_answered(server))
    assert sum(line in one for one in said) == 1, "and not for each time"
    assert server.streams >= 3


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_an_app_raises_its_thread_goes_on(kind: type[BaseException]) -> None:
    asked: list[RecordDict] = []

    def leave(content: RecordDict, context: Context) -> RecordDict:
        asked.append(content)
        if len(asked) == 2:
            return answer(content, context)
        raise kind

    server = HostileServer(saying(welcome(), task(98), task(99)))
    heard_by_a_client(server, has_answered(server), leave)
    assert server.answers[0].failure.reason == f"cannot answer: an unexpected {kind.__name__}"


def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.stream, "FIRST_WORD_SECONDS", 0.3)
    is_over = threading.Event()

    def silent(_: Iterator[bytes]) -> Iterator[FromServer]:
        is_over.wait(20)
        yield from ()

    def until() -> bool:
        if has_answered(server)():
            is_over.set()
        return is_over.is_set()

    server = HostileServer(silent, silent, honest)
    said = heard_by_a_client(server, until)
    assert sum("it says nothing" in one for one in said) == 1


def test_a_task_before_there_is_a_run_is_answered_with_a_failure() -> None:
    def early(frames: Iterator[bytes]) -> Iterator[FromServer]:
        next(frames)
        yield task(5)
        next(frames)

    server = HostileServer(early, honest)
    heard_by_a_client(server, has_answered(server))
    assert "a task before there is a run" in server.answers[0].failure.reason


def test_tasks_without_end_are_refused_and_those_withdrawn_are_not_kept() -> None:
    """The first keeps the client busy: what comes then stands in line."""
    is_over = threading.Event()

    def busy(content: RecordDict, context: Context) -> RecordDict:
        is_over.wait(20)
        return answer(content, context)

    def flood(frames: Iterator[bytes]) -> Iterator[FromServer]:
        next(frames)
        yield welcome()
        yield task(1)
        for number in range(2, 1_000):
            yield task(number, payload_bytes=2 * PIECE_BYTES, piece=bytes(PIECE_BYTES))
            yield piece()
            yield FromServer(cancel=Cancel(task=number))

    def files() -> int:
        return sum("(deleted)" in str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())

    server, before = HostileServer(flood, honest), files()
    memory = resident_bytes(os.getpid())
    told: list[int] = []

    def until() -> bool:
        if server.streams >= 2 and not told:
            told.append(files())
            is_over.set()
        return has_answered(server)()

    said = heard_by_a_client(server, until, busy)
    assert sum(f"more than {MOST_TASKS} tasks at a time" in one for one in said) == 1
    assert told[0] <= before + 2, "files of what was withdrawn are gone"
    assert resident_bytes(os.getpid()) < memory + 100_000_000


def test_an_answer_that_is_going_up_is_sent_before_the_client_leaves() -> None:
    size, taken = 2 * PIECE_BYTES, list[FromClient]()

    def large(content: RecordDict, _: Context) -> RecordDict:
        return content_of(b"done", bytes(size))

    def taking(frames: Iterator[bytes]) -> Iterator[FromServer]:
        next(frames)
        yield welcome()
        yield task(99)
        taken.extend(map(FromClient.FromString, frames))

    server = HostileServer(taking)
    heard_by_a_client(server, has_answered(server), large, kbps=8 * PIECE_BYTES / 250)  # a piece takes 1/4 s
    assert sum(len(frame.piece or frame.answer.piece) for frame in taken) == size
    assert taken[-1].HasField("goodbye")


def test_what_a_server_says_is_one_short_line_and_not_a_flood(tmp_path: Path) -> None:
    def loud(frames: Iterator[bytes]) -> Iterator[FromServer]:
        next(frames)
        yield welcome()
        for number in range(1_000):
            yield FromServer(wait=Wait(reason=f"\x1b[2J{number}\n"))
            yield FromServer(finished=Finished(summary="x\r\n" * 1_000))
        yield task(98, question=head_of(pack_notice("\x1b]0;title\x07\n" * 1_000)))
        yield task(99)
        for _ in frames:
            pass

    server, log = HostileServer(loud), tmp_path / "log"
    with serving(server) as address, client_process(address, "--insecure", "--partition", "0/2", log=log) as process:
        wait_until(has_answered(server))
        assert process.poll() is None
    lines = log.read_text().split("\n")
    assert len(lines) <= 110
    assert all(len(line) <= 600 and line.isprintable() for line in lines)


def test_lines_beyond_a_number_are_lost_for_a_while() -> None:
    said: list[str] = []
    say = sparing(said.append, 3, 0.2)
    for number in range(10):
        say(str(number))
    assert said == ["0", "1", "2"]
    threading.Event().wait(0.25)
    say(Event("more", kind="notice"))
    assert said[-1] == "more"
