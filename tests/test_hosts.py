"""Separate machines: a server and three clients with addresses of their own, joined by bundles over TLS."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from server.local import leaving
from server.run_folder import RunFolder
from tests.namespaces import Network, needs_namespaces, network
from tests.processes import wait_until
from tests.test_resume import lines_in

CLIENTS = 3
THIN_KILOBITS_A_SECOND = 1000
BROKEN_KILOBITS_A_SECOND = 16  # so that an upload takes half a second, and can be cut in its middle
BEGUN_SECONDS = 0.2
CUT_SECONDS = 20.0
AROUND_BYTES = 50_000  # joining, handshakes, audits and signs of life


def start(net: Network, host: int, log: Path, stack: ExitStack, *command: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        process = subprocess.Popen([*net.on(host), sys.executable, "-m", *command], stdout=file, stderr=file)
    return stack.enter_context(leaving(process, 20))


@pytest.mark.slow
@needs_namespaces
def test_three_machines_with_bundles_finish_over_a_thin_and_a_broken_link(tmp_path: Path) -> None:
    keys, rounds = tmp_path / "keys", tmp_path / "run" / "rounds.jsonl"
    names = [f"client-{index}" for index in range(CLIENTS)]
    with network(CLIENTS + 1) as net, ExitStack() as stack:
        for command in (["init", str(keys), "--host", net.address(0)], ["add", *names, "--keys", str(keys)]):
            subprocess.run([sys.executable, "-m", "server", "keys", *command], check=True, capture_output=True)
        net.slow_down(1, THIN_KILOBITS_A_SECOND)
        options = (
            "--clients",
            str(CLIENTS),
            "--keys",
            str(keys),
            "--audit-every",
            "50",
            "--output",
            str(rounds.parent),
        )
        server = start(net, 0, tmp_path / "server.log", stack, "server", "run", "digits", *options)
        for index, name in enumerate(names):
            own = ("--partition", f"{index}/{CLIENTS}", "--state", str(tmp_path / name))
            bundle = str(keys / "bundles" / f"{name}.join")
            start(net, index + 1, tmp_path / f"{name}.log", stack, "client", "join", bundle, *own)
        memory = tmp_path / "client-1" / "client-1.safetensors"
        wait_until(lambda: lines_in(rounds) >= 30, seconds=240)
        saved = memory.stat().st_mtime_ns
        wait_until(lambda: memory.stat().st_mtime_ns != saved)  # which is right before it uploads
        time.sleep(BEGUN_SECONDS)
        net.cut(2)
        begun = lines_in(rounds)
        time.sleep(CUT_SECONDS)
        assert lines_in(rounds) == begun, "the upload was over before the link was cut"
        net.heal(2)
        assert server.wait(400) == 0
        crossed = [net.bytes_of(index + 1) for index in range(CLIENTS)]
    records = RunFolder(rounds.parent).rounds()
    assert [record.clients_counted for record in records] == [CLIENTS] * 100
    audits = [record.control_sum_norm for record in records if record.control_sum_norm is not None]
    assert len(audits) == 1
    assert max(audits) < 1e-5
    for name, (down, up) in zip(names, crossed, strict=True):
        traffic = [record.traffic_by_client[name] for record in records]
        counted = (
            sum((one.message_bytes_down or 0) for one in traffic),
            sum((one.message_bytes_up or 0) for one in traffic),
        )
        print(name, "counted", counted, "crossed", (down, up), lines_in(tmp_path / "server.log"))
        for one, other in zip(counted, (down, up), strict=True):
            assert one <= other <= 1.1 * one + AROUND_BYTES
