"""Strangers by the thousand: rounds go on, honest clients get in, and hardly a word is lost about it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from common.experiment.files import load_experiment
from server.keys.folder import Keys
from server.link import hub as hub_module
from server.link import service
from server.link.hub import Hub
from server.link.limits import peer_of
from strategies.flower.terms import Terms
from tests.harness.processes import client_process, deploy, wait_until
from tests.harness.raw_stream import RawStream
from tests.harness.strangers import COUNT, KINDS, begin_stream, connect, is_open, settings, strangers

IN_THE_CLEAR = [kind for kind in KINDS if "streams" in kind]
ROUNDS = 30


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_of_ipv6_a_peer_is_a_whole_network(address: str, peer: str) -> None:
    assert peer_of(address) == peer


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# One of the kinds is in `make test`.
@pytest.mark.parametrize(
    "kind", [kind if kind == "half handshakes" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_honest_clients_join_and_are_averaged_beside_a_thousand_strangers(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    keys = None if kind in IN_THE_CLEAR else Keys.init(tmp_path / "keys", ["127.0.0.1"], 9092)
    experiment = load_experiment("digits", ["clients=2", f"rounds={ROUNDS}", "schedule.period=3"])
    before = descriptors()
    with Hub("127.0.0.1:0", keys, said.append) as hub, strangers(kind, hub.address), ExitStack() as stack:
        for index in range(2):
            options = ["--partition", f"{index}/2"]
            if keys is None:
                options = [hub.address, "--insecure", *options]
            else:
                options = [str(keys.add(f"client-{index}")), "--server", hub.address, *options]
            stack.enter_context(client_process(*options, log=tmp_path / f"{index}.log"))
        # Strangers that say Hello in the clear are as good as clients: they are left out when two others are here.
        wait_until(lambda: {"client-0", "client-1"} <= set(map(hub.grid.client_name, hub.grid.get_node_ids())))
        run = deploy(hub, experiment, Terms(deadline_seconds=60))
        assert descriptors() < before + COUNT + 100
    assert run.counted == [2] * ROUNDS
    assert all(set(record.clients_missing) <= {"client-0", "client-1"} for record in run.records)
    assert len(said) <= 2, said  # once a minute a peer
    assert capfd.readouterr().err == "", "gRPC has nothing to say either"


def test_one_peer_cannot_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "most_connections", lambda: 2 * 200)
    said: list[str] = []
    with Hub("127.0.0.1:0", say=said.append) as hub, RawStream.in_the_clear(hub.address).hello("early") as early:
        early.hear_until("wait")
        time.sleep(1.5)  # its connection is known by now as an old one
        crowd = [connect(hub.address) for _ in range(390)]
        wait_until(lambda: sum(map(is_open, crowd)) < 200, 9)
        assert sum(map(is_open, crowd)) >= 100, "those that it may have it keeps"
        with RawStream.in_the_clear(hub.address).hello("late") as late:
            late.hear_until("wait")
        assert early.call.is_active()
        for one in crowd:
            one.close()
    assert [line for line in said if "too many connections of 127.0.0.1" in line] == said
    assert len(said) == 1


def test_there_are_no_more_connections_than_descriptors_are_left_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC keeps to grpc.max_allowed_incoming_connections: what is beyond is ended at once."""
    monkeypatch.setattr(hub_module, "most_connections", lambda: 50)
    monkeypatch.setattr(hub_module, "SECONDS_BETWEEN_COUNTS", 100.0)
    with Hub("127.0.0.1:0") as hub:
        before = descriptors()
        crowd = [connect(hub.address) for _ in range(200)]
        wait_until(lambda: sum(map(is_open, crowd)) == 50, 5)
        assert descriptors() <= before + 200 + 60  # ours, and those of the server
        for one in crowd:
            one.close()


@pytest.mark.slow
def test_who_says_nothing_is_ended_in_time(tmp_path: Path) -> None:
    """After 10 s without a handshake, and after 30 s without a stream."""
    keys = Keys.init(tmp_path / "keys", ["127.0.0.1"], 9092)
    with Hub("127.0.0.1:0", keys) as hub, Hub("127.0.0.1:0") as in_the_clear:
        silent, idle = connect(hub.address), connect(in_the_clear.address, settings())
        started = time.monotonic()
        wait_until(lambda: not is_open(silent), 15)
        assert time.monotonic() - started > 5
        wait_until(lambda: not is_open(idle), 40)
        silent.close()
        idle.close()


def test_streams_of_a_peer_that_leaves_everything_unread_are_counted_until_they_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer may say by HTTP/2 that it takes no byte: then a stream cannot even be refused."""
    monkeypatch.setattr(service, "HELLO_SECONDS", 0.2)
    monkeypatch.setattr(service, "MOST_STREAMS_OF_A_PEER", 20)
    said: list[str] = []
    with Hub("127.0.0.1:0", say=said.append) as hub:
        deaf = connect(hub.address, settings(window=0) + b"".join(begin_stream(number) for number in range(100)))
        wait_until(lambda: bool(hub._service._open))
        time.sleep(1)
        assert hub._service._open["127.0.0.1"] == 20
        deaf.close()
        wait_until(lambda: not hub._service._open, 10)
        with RawStream.in_the_clear(hub.address).hello("honest") as honest:
            honest.hear_until("wait")
    assert len(said) == 1
