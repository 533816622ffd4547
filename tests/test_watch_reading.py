"""What watch reads: files that grow, are cut or damaged, and whatever else somebody puts into a run's folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.rounds.records import PHASES, clients_of_json
from server.runs.run_folder import RunFolder
from server.watch import clients as clients_module
from server.watch import growing_file
from server.watch.downsample import kept_points
from server.watch.folders import run_folders
from server.watch.growing_file import MOST_BYTES, GrowingFile, start_of_last_lines
from server.watch.metrics import metrics
from server.watch.run_files import RunFiles
from server.watch.run_view import Json, RunView
from server.watch.watched import Watched
from tests.harness.watch import deployed_run, experiment_of, simulated_run, some_record


def shown(folder: Path) -> Json:
    """Return all that is shown of a run, as it would be sent."""
    found: Json = json.loads(json.dumps(RunView.read("run", folder).whole(), allow_nan=False))
    return found


def test_only_what_is_new_is_read_and_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = GrowingFile(path)
    assert file.read().lines == []
    path.write_bytes(b"one\ntwo\nthr")
    assert file.read().lines == [b"one", b"two"]
    assert file.read().lines == []
    with path.open("ab") as more:
        more.write(b"ee\n")
    news = file.read()
    assert (news.anew, news.lines) == (False, [b"three"])


def cut_and_grown(path: Path) -> None:
    """What a resume does in place, when the new lines are as long as the old ones."""
    with path.open("rb+") as file:
        file.truncate(4)
        file.seek(4)
        file.write(b"tw2\nth3\n4\n")


def replaced(path: Path) -> None:
    path.with_suffix(".new").write_bytes(b"one\ntwo\ntri\n4\n")
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("change", [cut_and_grown, replaced, lambda path: path.write_bytes(b"0\n"), Path.unlink])
def test_a_file_that_was_cut_or_replaced_is_read_anew(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\ntri\n")
    file = GrowingFile(path)
    file.read()
    change(path)
    news = file.read()
    assert news.anew
    assert news.lines == (path.read_bytes().split() if path.exists() else [])


def test_a_line_without_end_does_not_keep_us(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (MOST_BYTES + 10) + b"\nlast\n")
    file = GrowingFile(path)
    assert len(file.read().lines[0]) == MOST_BYTES
    assert file.read().lines == [b"x" * 10, b"last"]


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=40), st.integers(1, 20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_last_lines_are_found_from_the_end(tmp_path: Path, lines: list[bytes], wanted: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    start = start_of_last_lines(path, wanted, block_bytes=7)
    assert path.read_bytes()[start:].split(b"\n")[:-1] == lines[-wanted:]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=500), st.integers(4, 60))
def test_few_points_keep_the_extremes_and_the_ends(values: list[float], most: int) -> None:
    kept = kept_points(values, most)
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    chosen = [values[place] for place in kept]
    assert (min(chosen), max(chosen)) == (min(values), max(values))


def test_runs_are_found_however_deep_and_links_are_not_followed(tmp_path: Path) -> None:
    for place in ("a", "b/c", "b/d/e"):
        RunFolder.create(tmp_path / place, experiment_of(), "data")
    (tmp_path / "a" / "inside").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "no run").mkdir()
    assert sorted(run_folders(tmp_path)) == ["a", "b/c", "b/d/e"]


FILES = ("rounds.jsonl", "clients.jsonl", "events.jsonl", "status.json", "experiment.yaml", "model.safetensors")
numbers = st.sampled_from([0, -1, 1, 2, 3, 1e308, -1e308, 10**400, 1e-320, True, 7.5, float("nan"), float("inf")])
anything = st.recursive(
    st.none() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def replaced_in(value: object, change: Callable[[object], object], places: list[int]) -> object:
    """Return a JSON value with the one part changed that the count of places comes to."""
    places[0] -= 1
    if places[0] == 0:
        return change(value)
    if isinstance(value, dict):
        return {key: replaced_in(one, change, places) for key, one in value.items()}
    if isinstance(value, list):
        return [replaced_in(one, change, places) for one in value]
    return value


STATUS = {
    "time": "2026-11-18T14:05:57.123Z",
    "state": "training",
    "text": "",
    "round": 7,
    "round_started": "2026-11-18T14:05:57.123Z",
    "deadline_seconds": 60.0,
    "counted": 1,
    "needed": 2,
    "clients": 3,
    "waiting_for": ["client-1"],
    "clients_by_state": {"training": 1},
    "by_client": {"client-1": {"state": "training", "done": 1, "of": 2, "since": "2026-11-18T14:05:57.123Z"}},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = deployed_run(tmp_path_factory.mktemp("whole") / "run").path
    (folder / "status.json").write_text(json.dumps(STATUS))
    return folder


@given(
    name=st.sampled_from(["rounds.jsonl", "clients.jsonl", "events.jsonl", "status.json"]),
    line=st.integers(0, 5),
    place=st.integers(1, 60),
    new=anything,
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_for_a_value_the_run_is_shown(
    whole: Path, tmp_path: Path, name: str, line: int, place: int, new: object
) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    (folder / "model.safetensors").unlink()
    lines = (folder / name).read_text().splitlines()
    chosen = line % len(lines)
    lines[chosen] = json.dumps(replaced_in(json.loads(lines[chosen]), lambda _: new, [place]))
    (folder / name).write_text("".join(f"{one}\n" for one in lines))
    run = shown(folder)
    assert run["curve"]["round"]
    assert "cannot be read" not in run["state_text"]


@given(name=st.sampled_from(FILES), start=st.integers(0, 3000), junk=st.binary(max_size=60))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_bytes_are_in_a_file_the_run_is_listed(
    whole: Path, tmp_path: Path, name: str, start: int, junk: bytes
) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:start] + junk + content[start + len(junk) :])
    assert shown(folder)["id"] == "run"


def as_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (as_a_folder, "rounds.jsonl is not a file"),
        (as_a_pipe, "cannot be read: rounds.jsonl is not a file"),
        (lambda path: path.write_bytes(b"\0\xff not a run\n" * 3), "rounds.jsonl is damaged"),
        (lambda path: path.write_text("[" * 100_000 + "\n"), "rounds.jsonl is damaged"),
    ],
)
def test_a_folder_that_cannot_be_read_is_listed_as_such_beside_the_others(
    tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    simulated_run(tmp_path / "good")
    bad = simulated_run(tmp_path / "bad").path
    damage(bad / "rounds.jsonl")
    watched = Watched(tmp_path)
    listed = {one["id"]: one for one in watched.runs().content["runs"]}
    assert (listed["good"]["state"], listed["good"]["round"]) == ("finished", 6)
    assert listed["bad"]["state"] == "failed"
    assert why in listed["bad"]["state_text"]
    assert watched.run("bad").content["banner"]["kind"] == "stopped"


def test_names_and_words_are_one_short_line(tmp_path: Path) -> None:
    folder = deployed_run(tmp_path / "run")
    evil = f"\x1b[31m\r\n\u2028{'x' * 1000}"
    folder.add_event(json.dumps({"time": "2026-11-18T14:05:57Z", "kind": evil, "client": evil, "text": evil}))
    event = shown(folder.path)["events"][0]
    assert event["text"].startswith(" [31m   xxx")
    assert len(event["text"]) == 500
    assert len(event["client"]) == len(event["kind"]) == 100


def run_of_twenty_rounds(path: Path) -> RunFolder:
    folder = RunFolder.create(path, experiment_of(), "data")
    for number in range(1, 21):
        folder.add_clients(some_record(number, 3))
        folder.add_round(some_record(number, 3))
    return folder


def test_memory_of_a_client_and_of_its_gpu_is_told(tmp_path: Path) -> None:
    folder = run_of_twenty_rounds(tmp_path / "run")
    record = some_record(21, 2)
    record.by_client["client-1"] = replace(record.by_client["client-1"], vram_mb=2048.0)
    folder.add_clients(record)
    folder.add_round(record)
    told = {row["name"]: (row["memory_mb"], row["vram_mb"]) for row in shown(folder.path)["clients_table"]}
    assert told["client-0"] == (368.1, None)
    assert told["client-1"] == (368.1, 2048.0)


def test_sums_over_old_rounds_are_added_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "SECONDS_FOR_SUMS", 0.0)
    monkeypatch.setattr(clients_module, "STRIP_ROUNDS", 5)
    folder = run_of_twenty_rounds(tmp_path / "run")
    run = RunFiles(folder.path)
    run.refresh(with_clients=True)
    view = RunView("run", run, 0.0)
    assert run.clients.rounds[0][0] == 16
    assert view.whole()["clients_table"][0]["sent_bytes"] is None
    monkeypatch.setattr(clients_module, "SECONDS_FOR_SUMS", 10.0)
    run.refresh(with_clients=True)
    assert run.clients.counted == {"client-0": 20, "client-1": 20, "client-2": 20}
    sent = sum(one["client-0"].payload_bytes_up or 0 for _, one in folder.clients())
    assert {row["name"]: row["sent_bytes"] for row in view.whole()["clients_table"]}["client-0"] == sent


def test_a_break_down_and_a_sum_that_is_off_are_told_first(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", experiment_of(), "data")
    for number, score in enumerate((0.1, 0.5, 0.2, 0.09), 1):
        folder.add_round(some_record(number, 3, score))
    assert shown(folder.path)["banner"]["title"] == "test_accuracy fell from 0.5 in round 2"
    other = RunFolder.create(tmp_path / "other", experiment_of(), "data")
    record = json.loads(some_record(1, 3).to_json()) | {"control_sum_norm": 0.02}
    (other.path / "rounds.jsonl").write_text(json.dumps(record) + "\n")
    assert shown(other.path)["banner"]["kind"] == "control sum"


def test_coefficients_are_read_from_the_head_of_the_model(tmp_path: Path) -> None:
    folder = simulated_run(tmp_path / "run").path
    rows = [{"name": "age", "value": 2.5}, {"name": "<b>", "value": -1.0}]
    head = json.dumps({"__metadata__": {"coefficients": json.dumps(rows)}, "weight": {"shape": [2, 3]}}).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    (folder / "status.json").unlink()  # which would say how many weights there are
    run = shown(folder)
    assert run["coefficients"] == rows
    assert run["weights"] == 6


def test_many_clients_take_a_tenth_of_the_room_and_come_back_the_same(tmp_path: Path) -> None:
    few, many = some_record(3, 20), some_record(3, 554)
    assert few.clients_to_json().startswith('{"round":3,"clients":{"client-0":{')  # which people can read
    line = many.clients_to_json()
    assert line.startswith('{"round":3,"packed":"')
    assert len(line) * 1000 < 20e6  # a thousand rounds
    number, clients = clients_of_json(line)
    assert number == 3
    assert list(clients) == list(many.by_client)
    assert [one.payload_bytes_up for one in clients.values()] == [
        one.payload_bytes_up for one in many.by_client.values()
    ]
    assert clients["client-7"].seconds == {
        phase: round(many.by_client["client-7"].seconds[phase], 4) for phase in PHASES
    }


@given(st.binary(max_size=200))
def test_packed_nonsense_is_refused_in_one_way(junk: bytes) -> None:
    from base64 import b64encode

    for packed in (b64encode(junk).decode(), junk.decode("latin-1")):
        with pytest.raises(ValueError):  # noqa: PT011 - whichever
            clients_of_json(json.dumps({"round": 1, "packed": packed}))


def test_a_client_that_was_frozen_is_late_in_the_strip(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", experiment_of(), "data")
    for number in range(1, 11):
        record = replace(some_record(number, 3), seconds=30.0 if number == 7 else 0.1, waited_for="client-1")
        folder.add_clients(record)  # in which a frozen client tells only of its own phases
        folder.add_round(record)
    strips = {one["name"]: one for one in shown(folder.path)["strip"]["clients"]}
    assert [one["late"] for one in strips.values()] == [1, 0, 0]
    assert strips["client-1"]["cells"].index("L") == 6


def test_a_file_that_is_longer_than_one_reading_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_file, "MOST_BYTES", 2000)
    folder = RunFolder.create(tmp_path / "run", experiment_of(), "data")
    for number in range(1, 51):
        folder.add_round(some_record(number, 3))
    assert shown(folder.path)["round"] == 50
    watched = Watched(tmp_path)
    assert watched.runs().content["runs"][0]["round"] == 50


def test_sums_are_those_of_lines_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "SUMS_BYTES", 100)
    monkeypatch.setattr(clients_module, "STRIP_ROUNDS", 5)
    folder = run_of_twenty_rounds(tmp_path / "run")
    assert {row["missed"] for row in shown(folder.path)["clients_table"]} == {0}


@pytest.mark.parametrize(
    "name", ["status.json", "experiment.yaml", "events.jsonl", "clients.jsonl", "model.safetensors"]
)
@pytest.mark.timeout(20)
def test_nobody_waits_for_a_pipe_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    folder = deployed_run(tmp_path / "run").path
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert shown(folder)["id"] == "run"


def test_a_score_below_zero_has_not_fallen(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", experiment_of(), "data")
    for number, score in enumerate((-0.4, -0.3, -0.2), 1):
        folder.add_round(some_record(number, 3, score))
    assert shown(folder.path)["banner"] is None


def test_a_folder_whose_name_is_no_text_is_shown_too(tmp_path: Path) -> None:
    simulated_run(tmp_path / os.fsdecode(b"run-\xff"))
    watched = Watched(tmp_path)
    (run,) = watched.runs().content["runs"]
    assert watched.with_all(metrics).encode()
    assert watched.run(run["id"]).content["round"] == 6


def test_runs_of_different_metrics_are_not_compared_by_their_scores(tmp_path: Path) -> None:
    simulated_run(tmp_path / "one")
    folder = RunFolder.create(tmp_path / "other", experiment_of(), "data")
    folder.add_round(replace(some_record(1, 3), metrics={"test_r2": 0.7}))
    compared = Watched(tmp_path).compared(["one", "other"]).content
    assert (compared["levels"], compared["sentences"]["sent"]) == ([], "")
