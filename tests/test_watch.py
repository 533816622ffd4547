"""Watch over real HTTP: what it shows of real runs, whom it lets in, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from common.rounds.records import utc_now
from server.runs.run_folder import RunFolder
from tests.harness.processes import alive, free_port, local, proxskip_server, wait_until
from tests.harness.small_disk import needs_root, remount, small_disk
from tests.harness.watch import AWAY, HOSTILE, Visitor, deployed_run, simulated_run, some_record, watch


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    simulated_run(root / "simulated")
    simulated_run(root / "demo" / "fedavg", "algorithm.name=fedavg", "codec.encode_in_simulation=false")
    deployed_run(root / "deployed")
    return root


@pytest.fixture(scope="module")
def visitor(runs: Path) -> Iterator[Visitor]:
    with watch(runs) as visitor:
        yield visitor


def test_all_runs_are_listed_with_what_they_came_to(visitor: Visitor, runs: Path) -> None:
    listed = {one["id"]: one for one in visitor.ask("/api/runs")["runs"]}
    assert sorted(listed) == ["demo/fedavg", "deployed", "simulated"]
    simulated, fedavg, deployed = listed["simulated"], listed["demo/fedavg"], listed["deployed"]
    records = RunFolder(runs / "simulated").rounds()
    assert (simulated["state"], simulated["round"], simulated["rounds"]) == ("finished", 6, 6)
    assert (simulated["task"], simulated["algorithm"], simulated["density"]) == ("digits", "sparse_proxskip", 0.1)
    assert simulated["score"] == records[-1].metrics["test_accuracy"]
    assert simulated["best"]["score"] == max(record.metrics["test_accuracy"] for record in records)
    assert simulated["spark"] == [record.metrics["test_accuracy"] for record in records]
    assert simulated["sent_bytes_per_client"] == sum(record.payload_bytes_up or 0 for record in records) / 3
    assert simulated["sent_kind"] == "payload"
    assert (fedavg["sent_kind"], fedavg["sent_bytes_per_client"]) == ("values", 6 * 650 * 4)
    assert (simulated["how"], deployed["how"]) == ("simulated", "deployed")


def test_a_deployed_run_is_shown_with_its_clients_trouble_first(visitor: Visitor) -> None:
    run = visitor.ask("/api/run", "deployed")
    away, *others = run["clients_table"]
    assert (away["name"], away["sign"], away["missed"], away["phases_round"]) == (AWAY, "away", 2, 4)
    assert away["state_text"] == "missed round 6: lost on the way"
    assert {row["name"] for row in others} == {"client-1", HOSTILE}
    assert all(row["sign"] == "ok" and row["missed"] == 0 for row in others)
    assert all(row["total"] == pytest.approx(sum(row["phases"].values())) for row in others)
    assert run["clients_counts"] == {"answered": 2, "away": 1}
    strip = run["strip"]
    assert (strip["first_round"], strip["last_round"]) == (1, 6)
    assert (strip["clients"][0]["name"], strip["clients"][0]["cells"][-2:]) == (AWAY, "MM")
    assert strip["clients"][0]["counted"] == 4
    assert run["weights"] == 650
    assert run["weights_kept"] == 65
    assert run["curve"]["round"] == [1, 2, 3, 4, 5, 6]
    assert run["curve"]["sent"][-1] == run["sent_bytes_per_client"]
    assert run["settings"]["algorithm.density"] == 0.1
    assert run["events"][0]["kind"] == "finished"
    assert run["data"] == "scikit-learn digits"
    assert run["banner"] is None


def test_runs_are_compared_by_one_count_of_bytes(visitor: Visitor) -> None:
    both = visitor.ask("/api/compare", "simulated", "demo/fedavg")
    assert both["title"] == "digits, two methods"
    assert [run["label"] for run in both["runs"]] == ["sparse_proxskip", "fedavg"]
    assert {run["sent_kind"] for run in both["runs"]} == {"values"}  # fedavg did not encode
    assert both["runs"][0]["curve"]["sent"][-1] == 6 * 65 * 4
    assert all(len(reached) == len(both["levels"]) for reached in both["reach"].values())
    assert all(reached[-1] for reached in both["reach"].values())
    assert both["sentences"]["sent"].startswith(f"To reach {both['levels'][-1]:.3g}, ")
    assert set(both["differences"]) == {"algorithm.name", "algorithm.density", "codec.encode_in_simulation"}
    assert both["same"]["task.name"] == "digits"


@pytest.mark.parametrize("path", ["/api/run?id=../runs/simulated", "/api/run?id=nobody", "/api/compare?id=nobody"])
def test_what_is_no_run_is_not_found(visitor: Visitor, path: str) -> None:
    answer = visitor.get(path)
    assert (answer.status_code, answer.json()) == (404, {"detail": "there is no such run"})


@pytest.mark.parametrize("path", ["/../app.py", "/%2e%2e/app.py", "/..%2fapp.py"])
def test_only_the_page_is_served_of_our_files(visitor: Visitor, path: str) -> None:
    assert visitor.get(path).status_code == 404


def test_the_page_may_load_nothing_from_elsewhere(visitor: Visitor) -> None:
    for path in ("/", "/api/runs", "/metrics", "/nothing"):
        headers = visitor.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(visitor: Visitor, method: str) -> None:
    assert httpx.request(method, f"{visitor.address}api/runs").status_code == 405


def test_a_page_of_another_site_that_has_its_name_point_here_is_refused(visitor: Visitor) -> None:
    assert visitor.get("/api/runs", Host="evil.example").status_code == 403
    assert visitor.get("/api/runs", Host="evil.example:8092").status_code == 403
    for ours in ("localhost:9999", "127.0.0.1", "[::1]:8092", socket.gethostname()):
        assert visitor.get("/api/runs", Host=ours).status_code == 200


def test_elsewhere_than_on_loopback_the_token_is_asked_for(runs: Path) -> None:
    port = free_port()
    with watch(runs, "--listen", f"0.0.0.0:{port}") as visitor:
        here = f"http://127.0.0.1:{port}"
        token = visitor.address.partition("token=")[2]
        assert len(token) > 20
        assert httpx.get(f"{here}/api/runs").status_code == 403
        assert httpx.get(f"{here}/api/runs?token={token[:-1]}x").status_code == 403
        assert httpx.get(f"{here}/api/runs?token=%ff").status_code == 403
        with httpx.Client() as browser:
            assert browser.get(f"{here}/?token={token}").status_code == 200
            assert browser.get(f"{here}/api/runs").status_code == 200  # by its cookie
        stranger = httpx.get(f"{here}/metrics", cookies={f"proxskip_watch_{port}": "guess"})
        assert stranger.status_code == 403
        assert "set-cookie" not in stranger.headers


def test_pages_hear_of_a_line_that_is_appended(tmp_path: Path) -> None:
    folder = simulated_run(tmp_path / "run")
    with watch(tmp_path) as visitor, visitor.live("run") as run_changes, visitor.live() as list_changes:
        assert next(run_changes)["round"] == 6
        assert next(list_changes)["runs"][0]["round"] == 6
        folder.add_round(some_record(7, 3, score=0.25))
        changed = next(run_changes)
        assert (changed["round"], changed["score"]) == (7, 0.25)
        assert changed["curve"]["round"][-1] == 7
        assert next(list_changes)["runs"][0]["round"] == 7


def test_a_run_that_goes_back_at_a_resume_is_read_anew(tmp_path: Path) -> None:
    folder = deployed_run(tmp_path / "run")
    records = folder.rounds()
    with watch(tmp_path) as visitor, visitor.live("run") as changes:
        assert next(changes)["round"] == 6
        folder.go_back_to(records[2])
        changed = next(changes)
        assert (changed["round"], changed["strip"]["last_round"]) == (3, 3)
        assert changed["sent_bytes_per_client"] == sum(record.payload_bytes_up or 0 for record in records[:3]) / 3


def told(folder: Path, **values: object) -> None:
    draft = folder / "status.new"
    draft.write_text(json.dumps({"time": utc_now(), "round": 7, "rounds": 9, "clients": 3, **values}))
    draft.replace(folder / "status.json")


def test_a_run_that_waits_says_for_whom_and_until_when(tmp_path: Path) -> None:
    folder = deployed_run(tmp_path / "run").path
    (folder / "model.safetensors").unlink()
    begun = (datetime.now(UTC) - timedelta(hours=2, minutes=5, seconds=20)).isoformat()
    told(
        folder,
        time=(datetime.now(UTC) + timedelta(minutes=5)).isoformat(),  # however long this machine takes to look
        state="training",
        needed=2,
        counted=1,
        round_started=begun,
        deadline_seconds=10800.0,
        waiting_for=["client-1"],
        clients_by_state={"answered": 1, "training": 1, "away": 1},
        by_client={
            HOSTILE: {"state": "answered"},
            "client-1": {"state": "training", "done": 2, "of": 4},
            AWAY: {"state": "away", "since": begun},
        },
    )
    with watch(tmp_path) as visitor:
        run = visitor.ask("/api/run", "run")
        metrics = visitor.get("/metrics").text
    assert (run["state"], run["state_text"]) == ("waiting", "2 h 5 min, for client-1")
    assert run["banner"]["title"] == "Waiting 2 h 5 min for client-1"
    assert run["banner"]["text"].startswith("Round 7 has 1 of 3 uploads and needs 2: client-2 is away.")
    assert run["banner"]["clients"] == ["client-1", AWAY]
    assert run["banner"]["deadline"]["seconds"] == 10800.0
    assert [(row["name"], row["sign"]) for row in run["clients_table"]] == [
        ("client-1", "late"),
        (AWAY, "away"),
        (HOSTILE, "ok"),
    ]
    assert run["clients_table"][0]["state_text"] == "no answer for 2 h 5 min"
    assert run["clients_table"][1]["state_text"] == "away for 2 h 5 min"
    assert 'proxskip_clients{run="run",state="late"} 1' in metrics
    assert 'proxskip_waiting{run="run"} 1' in metrics


def test_a_run_whose_process_is_gone_is_stopped_and_says_how_it_goes_on(tmp_path: Path) -> None:
    folder = simulated_run(tmp_path / "run").path
    (folder / "model.safetensors").unlink()
    command = "proxskip-server simulate --resume runs/digits"
    told(folder, state="training", command=command, time=(datetime.now(UTC) - timedelta(seconds=11)).isoformat())
    with watch(tmp_path) as visitor:
        run = visitor.ask("/api/run", "run")
    assert (run["state"], run["banner"]["kind"], run["command"]) == ("stopped", "stopped", command)
    assert command in run["banner"]["text"]


def test_a_run_of_old_without_a_status_is_live_while_it_writes(tmp_path: Path) -> None:
    folder = simulated_run(tmp_path / "run").path
    for name in ("model.safetensors", "events.jsonl", "status.json"):
        (folder / name).unlink()
    with watch(tmp_path) as visitor:
        assert visitor.ask("/api/run", "run")["state"] == "live"
    an_hour_ago = time.time() - 3600
    os.utime(folder / "rounds.jsonl", (an_hour_ago, an_hour_ago))
    with watch(folder) as visitor:  # one run, named by itself
        (run,) = visitor.ask("/api/runs")["runs"]
    assert (run["id"], run["state"], run["state_text"]) == ("run", "stopped", "nothing new for 1 h")


def test_the_next_port_is_taken_where_one_is_not_free(runs: Path) -> None:
    with watch(runs) as first, watch(runs) as second:
        assert first.address != second.address
        assert second.ask("/api/runs")["runs"]
        port = first.address.rstrip("/").rpartition(":")[2]
        refused = proxskip_server("watch", str(runs), "--listen", f"127.0.0.1:{port}")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: --listen 127.0.0.1:{port}: Address already in use")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("nowhere",), "error: nowhere is no folder: name the one that runs are in\n"),
        ((".", "--listen", "8092"), "error: --listen 8092: expected HOST:PORT, such as 127.0.0.1:8092\n"),
    ],
)
def test_what_cannot_be_watched_is_one_line(tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    answer = proxskip_server("watch", *arguments, cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (2, error)


def test_it_leaves_at_once_with_pages_open(runs: Path) -> None:
    with watch(runs) as visitor, visitor.live() as changes:
        next(changes)
        visitor.process.send_signal(signal.SIGINT)
        assert visitor.process.wait(10) == 0
        assert visitor.process.stdout is not None
        assert visitor.process.stdout.read() == ""


def test_a_folder_that_is_taken_away_ends_its_live_page_alone(tmp_path: Path) -> None:
    simulated_run(tmp_path / "kept")
    gone = simulated_run(tmp_path / "gone").path
    with watch(tmp_path) as visitor, visitor.live("gone") as changes:
        next(changes)
        gone.rename(tmp_path.parent / f"{tmp_path.name}-away")
        assert [one for one in changes if one["state"] == "finished"] == []
        assert visitor.ask("/api/run", "kept")["round"] == 6


@needs_root
def test_a_full_or_read_only_disk_is_watched_like_any(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4096) as disk:
        simulated_run(disk / "run")
        (disk / "filler").write_bytes(
            b"\0" * (4096 * 1024 - sum(one.stat().st_size for one in disk.rglob("*")) - 65536)
        )
        remount(disk, "ro")
        with watch(disk) as visitor:
            assert visitor.ask("/api/run", "run")["round"] == 6


def test_watch_of_a_run_shows_it_and_its_end_is_no_matter(tmp_path: Path) -> None:
    options = ("--set", "rounds=100000", "--watch", "--output", "runs/mine")
    command = [sys.executable, "-m", "server", "simulate", "digits", *options]
    log = tmp_path / "log"
    with log.open("w") as file, subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file) as server:
        try:
            wait_until(lambda: "watch it at http" in log.read_text())
            address, _, run_id = log.read_text().partition("watch it at ")[2].split()[0].partition("#/run/")
            assert run_id == "mine"
            wait_until(lambda: httpx.get(f"{address}api/run?id=mine").json()["round"] > 2)
            watches = _watch_processes(tmp_path)
            assert len(watches) == 1
            os.kill(watches[0], signal.SIGKILL)
            done = len(RunFolder(tmp_path / "runs" / "mine").rounds())
            wait_until(lambda: len(_whole_lines(tmp_path / "runs" / "mine" / "rounds.jsonl")) > done + 5)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    assert "there is no page" not in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_watch_ends_with_its_command_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    command = local("digits", "--clients", "2", "--set", "rounds=100000", "--watch", "--output", "runs/mine")
    log = tmp_path / "log"
    with log.open("w") as file, subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file) as server:
        wait_until(lambda: "watch it at http" in log.read_text())
        (watching,) = _watch_processes(tmp_path)
        server.send_signal(number)
        wait_until(lambda: not alive(watching))


@pytest.mark.slow
def test_a_run_goes_on_without_a_page_where_every_port_is_taken(tmp_path: Path) -> None:
    taken = []
    for port in range(8092, 8192):
        try:
            taken.append(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
    try:
        answer = proxskip_server("simulate", "digits", "--set", "rounds=2000", "--watch", cwd=tmp_path)
    finally:
        for one in taken:
            one.close()
    assert answer.returncode == 0, answer.stderr
    assert "there is no page to watch: the ports 8092 to 8191 are all taken" in answer.stdout


def _watch_processes(folder: Path) -> list[int]:
    """Return the watches that were started in a folder."""
    found = []
    for one in Path("/proc").iterdir():
        try:
            if b"server\0watch\0" in (one / "cmdline").read_bytes() and (one / "cwd").resolve() == folder.resolve():
                found.append(int(one.name))
        except OSError:
            continue
    return found


def _whole_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
