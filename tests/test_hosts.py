"""Separate machines: a server and three clients with addresses of their own, joined by bundles over TLS."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from server.deploy.local_clients import leaving
from server.runs.run_folder import RunFolder
from tests.harness.namespaces import Network, needs_namespaces, network
from tests.harness.processes import lines_in, wait_until

CLIENTS = 3
THIN_KILOBITS_A_SECOND = 1000
BROKEN_KILOBITS_A_SECOND = 16  # so that an upload takes half a second, and can be cut in its middle
BEGUN_BYTES = 200  # of an upload of some 2 kB
CUT_SECONDS = 20.0
AROUND_BYTES = 50_000  # joining, handshakes, audits and signs of life
MESSAGE_BYTES, WIRE_BYTES = 150, 400  # that may be around a payload: in its frame, and on the wire


def start(net: Network, host: int, log: Path, stack: ExitStack, *command: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        process = subprocess.Popen([*net.on(host), sys.executable, "-m", *command], stdout=file, stderr=file)
    return stack.enter_context(leaving(process, 20))


@pytest.mark.slow
@needs_namespaces
def test_what_crosses_a_wire_is_little_more_than_the_payload(tmp_path: Path) -> None:
    """All that TCP, TLS and HTTP/2 put around it, and what goes the other way to confirm it, is counted."""
    keys, rounds = tmp_path / "keys", tmp_path / "run" / "rounds.jsonl"
    with network(3) as net, ExitStack() as stack:
        for command in (["init", str(keys), "--host", net.address(0)], ["add", "a", "b", "--keys", str(keys)]):
            subprocess.run([sys.executable, "-m", "server", "keys", *command], check=True, capture_output=True)
        options = ("--clients", "2", "--keys", str(keys), "--output", str(rounds.parent))
        server = start(net, 0, tmp_path / "server.log", stack, "server", "run", "digits", *options)
        for index, name in enumerate("ab"):
            own = (str(keys / "bundles" / f"{name}.join"), "--partition", f"{index}/2", "--state", str(tmp_path / name))
            start(net, index + 1, tmp_path / "log", stack, "client", "join", *own)
        wait_until(lambda: lines_in(rounds) >= 10)
        before, first = net.bytes_of(1), lines_in(rounds)
        wait_until(lambda: lines_in(rounds) >= 90)
        after, last = net.bytes_of(1), lines_in(rounds)
        assert server.wait(60) == 0
    clients = dict(RunFolder(rounds.parent).clients())
    traffic = [clients[number]["a"] for number in range(first + 1, last + 1)]
    down = [(one.payload_bytes_down or 0, one.message_bytes_down or 0) for one in traffic]
    up = [(one.payload_bytes_up or 0, one.message_bytes_up or 0) for one in traffic]
    for crossed, counted in ((after[0] - before[0], down), (after[1] - before[1], up)):
        assert all(payload < message <= payload + MESSAGE_BYTES for payload, message in counted)
        around = crossed - sum(payload for payload, _ in counted)
        assert around <= WIRE_BYTES * (len(counted) + 1), around / len(counted)  # one may be half done


@pytest.mark.slow
@needs_namespaces
def test_three_machines_with_bundles_finish_over_a_thin_and_a_broken_link(tmp_path: Path) -> None:
    keys, rounds = tmp_path / "keys", tmp_path / "run" / "rounds.jsonl"
    names = [f"client-{index}" for index in range(CLIENTS)]
    with network(CLIENTS + 1) as net, ExitStack() as stack:
        for command in (["init", str(keys), "--host", net.address(0)], ["add", *names, "--keys", str(keys)]):
            program = [sys.executable, "-m", "server", "keys"]
            subprocess.run([*program, *command], check=True, capture_output=True)
        net.slow_down(1, THIN_KILOBITS_A_SECOND)
        safe = ("--keys", str(keys), "--audit-every", "100", "--output", str(rounds.parent))
        long = ("--set", "algorithm.density=1", "--set", "codec.precision=float32")  # uploads, to be cut in the middle
        options = ("--clients", str(CLIENTS), *safe, *long)
        server = start(net, 0, tmp_path / "server.log", stack, "server", "run", "digits", *options)
        for index, name in enumerate(names):
            own = ("--partition", f"{index}/{CLIENTS}", "--state", str(tmp_path / name))
            bundle = str(keys / "bundles" / f"{name}.join")
            start(net, index + 1, tmp_path / f"{name}.log", stack, "client", "join", bundle, *own)
        memory = tmp_path / "client-1" / "client-1.memory.0"
        wait_until(lambda: lines_in(rounds) >= 20, seconds=240)
        net.slow_down(2, BROKEN_KILOBITS_A_SECOND)
        slowed = lines_in(rounds)
        wait_until(lambda: lines_in(rounds) >= slowed + 2)
        saved = memory.stat().st_mtime_ns
        wait_until(lambda: memory.stat().st_mtime_ns != saved)  # which is right before it uploads
        sent = net.bytes_of(2)[1]
        wait_until(lambda: net.bytes_of(2)[1] >= sent + BEGUN_BYTES)
        net.cut(2)
        begun = lines_in(rounds)
        time.sleep(CUT_SECONDS)
        assert lines_in(rounds) == begun, "the upload was over before the link was cut"
        net.speed_up(2)
        net.heal(2)
        assert server.wait(400) == 0
        crossed = [net.bytes_of(index + 1) for index in range(CLIENTS)]
    records, by_client = RunFolder(rounds.parent).rounds(), dict(RunFolder(rounds.parent).clients())
    assert [record.clients_counted for record in records] == [CLIENTS] * 100
    audits = [record.control_sum_norm for record in records if record.control_sum_norm is not None]
    assert len(audits) == 1
    assert max(audits) < 1e-5
    for name, (down, up) in zip(names, crossed, strict=True):
        traffic = [by_client[record.round][name] for record in records]
        counted_down = sum(one.message_bytes_down or 0 for one in traffic)
        counted_up = sum(one.message_bytes_up or 0 for one in traffic)
        assert counted_down <= down <= 1.1 * counted_down + AROUND_BYTES
        assert counted_up <= up <= 1.1 * counted_up + AROUND_BYTES
