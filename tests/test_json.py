"""--json: one document on stdout for programs to read, and nothing else there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.experiment.shipped import shipped_experiments
from common.program.identity import fingerprint
from server.keys.folder import Keys
from server.runs.report import curve
from server.runs.run_folder import RunFolder
from tests.harness.processes import proxskip_server
from tests.test_programs import NAMES, simulate

RUNS = ("sparse", "dense")


def document(*arguments: str, cwd: Path | None = None) -> Any:  # noqa: ANN401 - whatever JSON holds
    finished = proxskip_server(*arguments, "--json", cwd=cwd)
    assert (finished.returncode, finished.stderr) == (0, "")
    return json.loads(finished.stdout)


def test_list() -> None:
    listed = document("list")
    assert list(listed) == ["experiments", "algorithms", "tasks", "studies"]
    assert listed["experiments"] == shipped_experiments()
    assert listed["algorithms"] == NAMES


def test_keys_list_has_fingerprints_and_no_secret(tmp_path: Path) -> None:
    keys = Keys.init(tmp_path / "keys", ["192.168.0.10"], 9092)
    for name in ("ward-1", "ward-2"):
        keys.add(name)
    known = {name: fingerprint(key) for name, key in keys.clients().items()}
    keys.revoke("ward-2")
    assert document("keys", "list", "--keys", str(keys.folder)) == {
        "server": "192.168.0.10:9092",
        "clients": [{"name": "ward-1", "fingerprint": known["ward-1"]}],
        "revoked": [{"name": "ward-2", "fingerprint": known["ward-2"]}],
    }


def test_report_has_the_numbers_of_the_table_and_draws_nothing(tmp_path: Path) -> None:
    settings = ["--set", "rounds=3", "--set", "clients=2"]
    simulate("digits", *settings, output=tmp_path / "sparse")
    simulate("digits", *settings, "--set", "algorithm.name=fedavg", output=tmp_path / "dense")
    found = document("report", "sparse", "dense", cwd=tmp_path)
    points = {name: curve(RunFolder(tmp_path / name).rounds(), "test_accuracy", as_sent=True) for name in RUNS}
    level = min(max(score for _, score in points[name]) for name in RUNS)
    assert {name: found[name] for name in ("metric", "as_sent")} == {"metric": "test_accuracy", "as_sent": True}
    for row, name in zip(found["runs"], RUNS, strict=True):
        reached = next(bits for bits, score in points[name] if score >= level)
        assert row == {
            "name": name,
            "density": {"sparse": 0.1, "dense": 1.0}[name],
            "final": points[name][-1][1],
            "best": max(score for _, score in points[name]),
            "upload_bits": points[name][-1][0],
            "bits_a_value": pytest.approx(points[name][-1][0] / (3 * {"sparse": 65, "dense": 650}[name]), rel=0.1),
            "to_reach": [{"level": level, "upload_bits": reached}],
        }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense", "sparse"]


@pytest.mark.parametrize("arguments", [["keys", "list", "--keys", "nowhere"], ["report", "nowhere"]])
def test_an_error_is_a_line_on_stderr_and_stdout_stays_empty(arguments: list[str], tmp_path: Path) -> None:
    finished = proxskip_server(*arguments, "--json", cwd=tmp_path)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("error: nowhere ")
