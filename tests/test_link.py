"""The link itself: what happens to tasks, answers and pieces while streams come, break and come again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from flwr.app import Message

from common.codec.payload import checksum_of
from common.experiment.files import load_experiment
from common.messages.content import arrays_of, content_of, head_of, payload_of
from common.messages.flower import CLIENT_GONE
from common.messages.messages import Run, message_to, pack_introduction_question
from common.messages.messages_pb2 import Answer, Cancel, Failure, Goodbye, Held, Progress, Reply, Task
from common.rounds.records import RoundRecord
from common.storage.spool import PIECE_BYTES
from server.link import desk as desk_module
from server.link import hub as hub_module
from server.link.grid import LinkGrid
from server.link.hub import Hub
from strategies.flower.terms import Terms
from tests.harness import raw_stream
from tests.harness.processes import client_process, deploy, wait_until
from tests.harness.raw_stream import RawStream

RUN = Run(experiment=load_experiment("digits", ["clients=2", "rounds=3"]), name="a run")
LARGE = os.urandom(3 * PIECE_BYTES + 17)
DONE = Reply(done={}).SerializeToString()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub("127.0.0.1:0", say=lambda _: None) as hub:
        yield hub


@pytest.fixture
def grid(hub: Hub) -> Iterator[LinkGrid]:
    with hub.run(RUN) as grid:
        yield grid


def joined(hub: Hub, name: str = "a", **hello: object) -> RawStream:
    stream = RawStream.in_the_clear(hub.address).hello(name, **hello)
    stream.hear_until("welcome")
    return stream


@pytest.mark.slow
def test_a_stream_on_which_nothing_is_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training may take hours: pings are all that goes over the link, and they are not too many."""
    hurried = {"grpc.keepalive_time_ms": 1_000, "grpc.http2.min_ping_interval_without_data_ms": 500}
    for module, options in ((hub_module, "STREAM_OPTIONS"), (raw_stream, "CHANNEL_OPTIONS")):
        as_it_is = getattr(module, options)
        monkeypatch.setattr(module, options, tuple((key, hurried.get(key, value)) for key, value in as_it_is))
    with Hub("127.0.0.1:0", say=lambda _: None) as hub, hub.run(RUN) as grid, joined(hub) as client:
        time.sleep(8)  # gRPC ends a connection at the third ping that is too early
        ask(grid)
        client.hear_until("task")


def ask(grid: LinkGrid, payload: bytes = b"") -> str:
    """Ask the only client something."""
    wait_until(lambda: bool(grid.get_node_ids()))
    (node,) = grid.get_node_ids()
    content = content_of(head_of(pack_introduction_question()), arrays_of(payload))
    (message_id,) = grid.push_messages([message_to(node, "introduce", content)])
    return message_id


def answer_to(grid: LinkGrid, message_id: str) -> Message:
    replies: list[Message] = []

    def is_here() -> bool:
        replies.extend(grid.pull_messages([message_id]))
        return bool(replies)

    wait_until(is_here)
    return replies[0]


def downloaded(stream: RawStream) -> tuple[Task, bytes]:
    """Return the next task with all of its payload from its offset on."""
    task = stream.hear_until("task").task
    payload = task.piece
    while task.offset + len(payload) < task.payload_bytes:
        payload += stream.hear_until("piece").piece
    return task, payload


def test_a_task_and_its_answer_come_whole(hub: Hub, grid: LinkGrid) -> None:
    grid.limit_replies(len(LARGE))
    with joined(hub) as stream:
        asked = ask(grid, LARGE)
        task, payload = downloaded(stream)
        assert payload == LARGE
        stream.say(answer=Answer(task=task.task, reply=DONE, payload_bytes=len(LARGE), piece=LARGE[:5000]))
        for place in range(5000, len(LARGE), PIECE_BYTES):
            stream.say(piece=LARGE[place : place + PIECE_BYTES])
        reply = answer_to(grid, asked)
        carried = grid.carried(asked)
    assert payload_of(reply.content)[:] == LARGE
    assert head_of(reply.content) == DONE
    assert len(LARGE) < carried.up_bytes < len(LARGE) + 200
    assert len(LARGE) < carried.down_bytes < len(LARGE) + 200
    assert carried.seconds.keys() == {"download", "upload"}


def test_an_answer_that_was_cut_off_goes_on_at_its_offset(hub: Hub, grid: LinkGrid) -> None:
    grid.limit_replies(len(LARGE))
    half = len(LARGE) // 2
    with joined(hub) as stream:
        asked = ask(grid, b"question")
        task, _ = downloaded(stream)
        stream.say(answer=Answer(task=task.task, reply=DONE, payload_bytes=len(LARGE), piece=LARGE[:PIECE_BYTES]))
        stream.say(piece=LARGE[PIECE_BYTES:half])
        wait_until(lambda: grid.carried(asked).up_bytes > half)
    with joined(hub) as stream:
        again, _ = downloaded(stream)
        assert again.task == task.task
        assert (again.held.bytes, again.held.checksum) == (half, checksum_of(LARGE, half))
        stream.say(answer=Answer(task=task.task, reply=DONE, payload_bytes=len(LARGE), offset=half))
        stream.say(piece=LARGE[half : half + PIECE_BYTES])
        stream.say(piece=LARGE[half + PIECE_BYTES :])
        assert payload_of(answer_to(grid, asked).content)[:] == LARGE
    assert grid.carried(asked).up_bytes < len(LARGE) + 300


def test_an_answer_that_was_cut_off_may_begin_anew(hub: Hub, grid: LinkGrid) -> None:
    grid.limit_replies(len(LARGE))
    with joined(hub) as stream:
        asked = ask(grid)
        task, _ = downloaded(stream)
        stream.say(answer=Answer(task=task.task, reply=DONE, payload_bytes=len(LARGE), piece=LARGE[:PIECE_BYTES]))
        wait_until(lambda: grid.carried(asked).up_bytes > PIECE_BYTES)
    with joined(hub) as stream:
        downloaded(stream)
        stream.answer(task.task, DONE, b"another")
        assert payload_of(answer_to(grid, asked).content)[:] == b"another"


@pytest.mark.parametrize(("has", "goes_on"), [(LARGE, PIECE_BYTES + 5), (b"other bytes" + LARGE, 0)])
def test_a_task_that_was_cut_off_goes_on_where_the_client_has_it(
    has: bytes, goes_on: int, hub: Hub, grid: LinkGrid
) -> None:
    with joined(hub) as stream:
        ask(grid, LARGE)
        task, _ = downloaded(stream)
    held = Held(task=task.task, bytes=PIECE_BYTES + 5, checksum=checksum_of(has, PIECE_BYTES + 5))
    with joined(hub, held=held) as stream:
        again, payload = downloaded(stream)
    assert again.offset == goes_on
    assert payload == LARGE[goes_on:]


def test_a_new_stream_takes_the_place_of_the_old_one_with_its_task(hub: Hub, grid: LinkGrid) -> None:
    with joined(hub) as old:
        asked = ask(grid)
        task = old.hear_until("task").task
        with joined(hub) as new:
            assert new.hear_until("task").task.task == task.task
            refused = old.hear_until("refused").refused
            assert refused.final
            assert "has taken its place" in refused.reason
            new.answer(task.task, DONE)
            assert not answer_to(grid, asked).has_error()
    assert len(grid.get_node_ids()) == 1, "it is the same node, whatever its stream"


def test_another_of_the_same_name_waits_until_the_first_has_left(hub: Hub, grid: LinkGrid) -> None:
    with joined(hub), RawStream.in_the_clear(hub.address).hello("a", identity="another") as second:
        refused = second.hear_until("refused").refused
        assert not refused.final
        assert "another client is called a already" in refused.reason
    with joined(hub, identity="another"):
        pass


def test_who_says_goodbye_is_not_waited_for(hub: Hub, grid: LinkGrid) -> None:
    with joined(hub) as stream:
        asked = ask(grid)
        stream.hear_until("task")
        stream.say(goodbye=Goodbye())
        reply = answer_to(grid, asked)
    assert reply.error.code == CLIENT_GONE
    assert not grid.get_node_ids()


def test_who_does_not_come_back_is_given_up(hub: Hub, grid: LinkGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "RETURN_SECONDS", 0.2)
    with joined(hub) as stream:
        asked = ask(grid)
        stream.hear_until("task")
    reply = answer_to(grid, asked)
    assert reply.error.code == CLIENT_GONE
    assert "did not come back" in str(reply.error.reason)


def test_a_message_to_who_is_not_here_is_answered_at_once(grid: LinkGrid) -> None:
    (asked,) = grid.push_messages([message_to(77, "introduce", pack_introduction_question())])
    assert answer_to(grid, asked).error.code == CLIENT_GONE


def test_a_task_that_nobody_waits_for_is_withdrawn_and_its_answer_passed_over(hub: Hub, grid: LinkGrid) -> None:
    with joined(hub) as stream:
        asked = ask(grid)
        task = stream.hear_until("task").task
        grid.forget([asked])
        assert stream.hear_until("cancel").cancel == Cancel(task=task.task)
        stream.say(answer=Answer(task=task.task, reply=DONE, payload_bytes=5000, piece=LARGE[:1000]))
        stream.say(piece=LARGE[1000:5000])
        again = ask(grid)
        stream.answer(stream.hear_until("task").task.task, DONE)
        assert not answer_to(grid, again).has_error()
        assert not grid.pull_messages([asked])


def test_why_there_is_no_answer_is_what_flower_hears(hub: Hub, grid: LinkGrid) -> None:
    with joined(hub) as stream:
        asked = ask(grid)
        task = stream.hear_until("task").task
        stream.say(answer=Answer(task=task.task, failure=Failure(code=Failure.FORGOT, reason="lost it")))
        reply = answer_to(grid, asked)
    assert (reply.error.code, reply.error.reason) == (10_003, "lost it")


def test_what_a_client_does_is_known_at_every_moment(hub: Hub, grid: LinkGrid) -> None:
    def now() -> tuple[str, int, int]:
        client = grid.clients_now()["a"]
        assert client.since is not None
        assert time.time() - 60 < client.since <= time.time()
        return client.doing, client.done, client.of

    with joined(hub) as stream:
        assert now() == ("idle", 0, 0)
        asked = ask(grid)
        task = stream.hear_until("task").task.task
        for phase, doing in ((Progress.DOWNLOADING, "downloading"), (Progress.TRAINING, "training")):
            stream.say(progress=Progress(task=task, phase=phase, done=12, of=64))
            wait_until(lambda doing=doing: now() == (doing, 12, 64))  # type: ignore[misc]
        stream.say(progress=Progress(task=task, phase=7, done=1, of=2))  # type: ignore[arg-type] # of one that knows more
        stream.say(answer=Answer(task=task, payload_bytes=3_000, piece=bytes(1_000)))
        wait_until(lambda: now() == ("uploading", 1_000, 3_000))
        stream.say(piece=bytes(2_000))
        answer_to(grid, asked)
        assert now() == ("answered", 0, 0)
        ask(grid)
        stream.hear_until("task")
        wait_until(lambda: now() == ("training", 0, 0))
        grid.forget_all()
        assert now() == ("idle", 0, 0)
        stream.say(goodbye=Goodbye())
        wait_until(lambda: now() == ("away", 0, 0))


def test_clients_hear_of_each_run_and_of_its_end(hub: Hub) -> None:
    with RawStream.in_the_clear(hub.address).hello("a") as stream:
        assert "no run" in stream.hear_until("wait").wait.reason
        for name in ("first", "second"):
            with hub.run(Run(experiment=RUN.experiment, name=name)) as grid:
                welcome = stream.hear_until("welcome").welcome
                assert (welcome.run, welcome.experiment) == (name, RUN.experiment.to_yaml())
                grid.summary, grid.counted = f"{name} is over", {"a": 7, "b": 8}
            finished = stream.hear_until("finished").finished
            assert (finished.summary, finished.counted) == (f"{name} is over", 7)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ({"software": "sparse-proxskip 9.9"}, "install the same version on both"),
        ({"name": ""}, "printable characters"),
        ({"name": "a\nb"}, "printable characters"),
        ({"name": "x" * 101}, "printable characters"),
        ({"identity": ""}, "needs an identity"),
    ],
)
def test_a_bad_hello_is_refused_with_a_reason(hello: dict[str, str], reason: str, hub: Hub) -> None:
    with RawStream.in_the_clear(hub.address).hello(**{"name": "a", **hello}) as stream:
        assert reason in stream.hear_until("refused").refused.reason
        assert stream.hear() is None


def end_all(hub: Hub) -> None:
    for stream in set(hub._service._streams):
        stream.end()


def test_a_client_whose_stream_is_cut_in_mid_round_is_counted_in_it(tmp_path: Path) -> None:
    """The server ends its stream while it trains: it comes back, and answers the task that it has at hand."""
    experiment = load_experiment("digits", ["clients=2", "rounds=6", "schedule.period=64"])
    with Hub("127.0.0.1:0", say=lambda _: None) as hub, ExitStack() as stack:
        for index in range(2):
            options = ("--insecure", "--partition", f"{index}/2", "--state", str(tmp_path / str(index)))
            stack.enter_context(client_process(hub.address, *options, log=tmp_path / f"{index}.log"))

        def cut(record: RoundRecord) -> None:
            if record.round in (2, 4):
                threading.Timer(0.02, hub._in_loop, [lambda: end_all(hub)]).start()

        run = deploy(hub, experiment, Terms(minimum_clients=2), after=cut)
        calm = deploy(hub, experiment, Terms(minimum_clients=2))
    assert run.counted == [2] * 6
    assert not any("asking again" in text or "has left" in text for text in run.said)
    assert run.model.equal(calm.model)
