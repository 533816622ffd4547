"""What watch tells Prometheus, and what a real Prometheus makes of it with the rules that come with us."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from server.deploy.local_clients import leaving
from tests.harness.processes import descendants_of, free_port, lines_in, local, wait_until
from tests.harness.watch import Visitor, deployed_run, watch

MONITORING = Path(__file__).parent.parent / "docs" / "monitoring"
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="needs prometheus and promtool: the Debian package `prometheus`",
)


def test_all_that_the_board_and_the_rules_ask_for_is_told(tmp_path: Path) -> None:
    run = deployed_run(tmp_path / 'a "run"', "rounds=6").path
    (run / "model.safetensors").unlink()
    with (run / "events.jsonl").open("w"):  # else it is finished
        pass
    record = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    record |= {"round": 7, "control_sum_norm": 1e-7}
    with (run / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    with watch(tmp_path) as visitor:
        answer = visitor.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'proxskip_clients{run="a \\"run\\"",state="away"} 1\n' in answer.text
    assert 'proxskip_clients{run="a \\"run\\"",state="answered"} 2\n' in answer.text
    assert 'proxskip_round{run="a \\"run\\""} 7\n' in answer.text
    told = set(re.findall(r"^(proxskip_\w+)\{", answer.text, re.MULTILINE))
    for name in ("grafana.json", "alerts.yaml", "README.md"):
        asked = set(re.findall(r"proxskip_\w+", (MONITORING / name).read_text()))
        assert asked <= told
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "metrics"], input=answer.text, text=True, check=True, timeout=60)


@needs_prometheus
def test_the_files_are_what_prometheus_takes() -> None:
    subprocess.run(["promtool", "check", "config", str(MONITORING / "prometheus.yml")], check=True, timeout=60)


@contextmanager
def prometheus(folder: Path, visitor: Visitor) -> Iterator[str]:
    """Start Prometheus with our files, made so quick that a test can wait for them."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [visitor.address.removeprefix("http://").rstrip("/")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    rules = (MONITORING / "alerts.yaml").read_text()
    (folder / "alerts.yaml").write_text(rules.replace("for: 1m", "for: 2s").replace("> 60", "> 8"))
    address = f"127.0.0.1:{free_port()}"
    options = ("--storage.tsdb.path", str(folder / "data"), "--web.listen-address", address)
    command = ["prometheus", "--config.file", str(folder / "prometheus.yml"), *options]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
        leaving(process),
    ):
        yield f"http://{address}"


def firing(address: str) -> set[tuple[str, str]]:
    """Return which alerts fire of which runs."""
    try:
        alerts = httpx.get(f"{address}/api/v1/alerts").json()["data"]["alerts"]
    except httpx.TransportError:  # it is not there yet
        return set()
    return {(one["labels"]["alertname"], one["labels"]["run"]) for one in alerts if one["state"] == "firing"}


def clients_of(server: int) -> list[int]:
    """Return the processes of a federation's clients, in their order."""
    found = {}
    for one in descendants_of(server):
        part = re.search(rb"--partition\0(\d+)/", Path(f"/proc/{one}/cmdline").read_bytes())
        if part:
            found[int(part[1])] = one
    return [found[index] for index in sorted(found)]


@pytest.mark.slow
@needs_prometheus
def test_alerts_fire_when_a_client_is_stopped_and_when_a_round_stalls(tmp_path: Path) -> None:
    options = ("--clients", "3", "--minimum-clients", "2", "--deadline-seconds", "2", "--set", "rounds=1000000")
    command = local("digits", *options, "--output", str(tmp_path / "runs" / "mine"))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server, leaving(server, 30):
        wait_until(lambda: lines_in(tmp_path / "runs" / "mine" / "rounds.jsonl") > 5)
        with watch(tmp_path / "runs") as visitor, prometheus(tmp_path, visitor) as address:
            wait_until(lambda: 'proxskip_live{run="mine"} 1' in visitor.get("/metrics").text)
            asked = f"{address}/api/v1/query?query=proxskip_round"
            wait_until(lambda: firing(address) == set() and _has_a_result(asked))
            one, two, _ = clients_of(server.pid)
            os.kill(one, signal.SIGSTOP)
            wait_until(lambda: firing(address) == {("ClientAway", "mine")})
            os.kill(two, signal.SIGSTOP)
            wait_until(lambda: ("RoundStalls", "mine") in firing(address), 120)
            for client in (one, two):
                os.kill(client, signal.SIGCONT)
            wait_until(lambda: firing(address) == set(), 120)


def _has_a_result(query: str) -> bool:
    try:
        return bool(httpx.get(query).json()["data"]["result"])
    except httpx.TransportError:
        return False
