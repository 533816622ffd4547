"""What people see of a run: the server's picture, its lines in a log, its last words, and a client's line."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from client.screen import Screen, Standing, line_of
from common.experiment.files import load_experiment
from common.rounds.records import ClientRecord, Missing, RoundRecord
from common.tasks.tabular import Tabular
from common.units import bytes_text, seconds_text, speed_text
from server.model.finished import FinishedModel
from server.runs.about import About
from server.runs.course import Course
from server.runs.now import ClientNow, RunNow
from server.runs.summary import closing_lines
from server.runs.view import View, live_view, sparkline
from tests.harness.processes import wait_until

ABOUT = About(
    name="digits",
    how="deployed",
    task="digits",
    algorithm="sparse_proxskip",
    data="scikit-learn digits",
    metric="test_accuracy",
    weights=650,
    rounds=1500,
    clients=3,
    folder=Path("runs/digits"),
    command="proxskip-server local --resume runs/digits",
)
RECORD = RoundRecord(
    round=1,
    time="2026-11-18T12:05:14.000Z",
    local_steps=64,
    clients=3,
    clients_counted=3,
    paper_bits_up=2_080.0,
    density_up=0.1,
    density_down=0.1,
    control_sum_norm=None,
    seconds=0.031,
    metrics={"test_accuracy": 0.9},
    payload_bytes_up=942,
    payload_bytes_down=1_200,
    message_bytes_up=3_000,
    message_bytes_down=2_400,
    waited_for="client-1",
    by_client={
        "client-1": ClientRecord(paper_bits_up=2_080, message_bytes_up=1_000, seconds={"train": 1.0, "upload": 0.5})
    },
)


def course_of(rounds: int) -> Course:
    course = Course("test_accuracy")
    for number in range(1, rounds + 1):
        course.add(replace(RECORD, round=number, metrics={"test_accuracy": 0.9 - abs(number - 640) / 10_000}))
    return course


def drawn(now: RunNow, course: Course, width: int, about: About = ABOUT, where: str = "runs/digits") -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(View(about, course, lambda: now, where).picture(width))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(len(line) for line in lines) <= width
    return lines


NOW = time.mktime((2026, 11, 18, 12, 5, 37, 0, 0, -1))


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


def ago(seconds: float) -> float:
    return NOW - seconds


CLIENTS = {
    "client-0": ClientNow("training", ago(0.5), 12, 64, "cpu"),
    "client-1": ClientNow("uploading", ago(2), 620, 1_000),
    "client-2": ClientNow("away", ago(23)),
}
TRAINING = RunNow(state="training", round=813, round_started=ago(24), needed=2, counted=1, clients=CLIENTS)


@pytest.mark.parametrize("width", [80, 150])
def test_a_run_is_drawn_whole(width: int) -> None:
    course = course_of(812)
    course._ends.clear()
    course._ends.extend([0.0, 0.03])
    title, bar, score, traffic, waiting, *clients = drawn(TRAINING, course, width, where="http://127.0.0.1:8092")
    assert title == "digits · sparse_proxskip · 3 clients".ljust(width - 21) + "http://127.0.0.1:8092"
    assert bar.endswith("  round 812/1500 · 0.03 s per round · 21 s left")
    assert bar.startswith("━━━━━━━━━━")
    assert score.startswith("test_accuracy 0.8828 ")
    assert score.endswith("█▇▇▇▇▆▆  best 0.9000 (round 640)")
    assert traffic == "sent 812 kB per client (model 255 kB) · got 650 kB · density 0.1"
    assert waiting == "round 813 waits for client-0, client-1, client-2, 24 s after its start"
    assert clients[0] == "●  client-0  training   step 12 of 64"
    assert clients[1] == "↑  client-1  uploading  62 %   2.5 kbit/s   slowest in 10 of the last 10"
    assert clients[2] == "○  client-2  away 23 s  left at 12:05:14"


@pytest.mark.parametrize("width", [80, 150])
def test_of_many_clients_the_worst_are_drawn(width: int) -> None:
    clients = {f"client-{number}": ClientNow("answered", ago(1)) for number in range(500)}
    clients |= {"client-7": ClientNow("away", ago(50)), "client-8": ClientNow("away", ago(99))}
    clients |= {"client-1": CLIENTS["client-0"], "client-2": CLIENTS["client-0"]}
    lines = drawn(replace(TRAINING, clients=clients, counted=0), course_of(3), width)[4:]
    assert lines[0] == "  2 away · 2 training · 496 answered; the slowest of them:"
    assert [line.split()[1] for line in lines[1:]] == ["client-8", "client-7", "client-1", "client-2", "client-0"]


def test_before_its_first_round_a_run_says_for_whom_it_waits() -> None:
    now = RunNow(state="gathering", round=1, needed=3, gathering="waiting for clients: 2 of 3 are here")
    title, bar, waiting = drawn(now, Course("test_accuracy"), 80)
    assert (title.split()[0], bar.split()[-2:], waiting) == ("digits", ["round", "0/1500"], now.gathering)


def test_a_simulation_is_drawn_without_clients() -> None:
    silent = replace(RECORD, message_bytes_up=None, message_bytes_down=None, by_client={}, waited_for="")
    course = Course("test_accuracy")
    course.add(silent)
    assert drawn(RunNow(state="training", round=2), course, 80)[3:] == [
        "sent 314 B per client · got 400 B · density 0.1"
    ]
    course = Course("test_accuracy")
    course.add(replace(silent, payload_bytes_up=None, payload_bytes_down=None))
    assert drawn(RunNow(state="training", round=2), course, 80)[3:] == [
        "sent 260 B per client in values alone · density 0.1"
    ]


@pytest.mark.parametrize("width", [80, 150])
def test_names_of_any_length_and_kind_stay_on_their_line(width: int) -> None:
    """A client is called as it likes; one may look like rich's markup."""
    clients = {"[/red]": ClientNow("idle"), "x" * 100: CLIENTS["client-1"], "\x1b[2J\n": ClientNow("put out")}
    about = replace(ABOUT, name="n" * 100)
    lines = drawn(replace(TRAINING, clients=clients), course_of(1), width, about, where="/long" * 40)
    assert len(lines) == 8
    assert "[/red]" in "".join(lines)
    assert "\x1b" not in "".join(lines)
    assert "62 %" in lines[6]


def test_a_line_of_a_log_begins_with_the_round_and_the_score() -> None:
    course = course_of(812)
    missing = {"it has left": Missing(1, ["client-2"])}
    course.add(replace(RECORD, round=813, clients_counted=2, clients_missing=missing))
    line = View(ABOUT, course, lambda: TRAINING, "").line()
    assert line.startswith("round 813/1500  test_accuracy 0.9000 (best 0.9000)  ")
    assert " left  sent 813 kB per client (model 255 kB) · got 650 kB · density 0.1  2 of 3 clients counted" in line
    assert line.endswith("  round 813 waits for client-0, client-1, client-2, 24 s after its start")


def test_a_log_has_a_line_when_there_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.runs.view.FIRST_LINE_SECONDS", 0.0)
    shown, course = io.StringIO(), course_of(1)
    with live_view(Console(file=shown, width=80), View(ABOUT, course, lambda: TRAINING, "")):
        course.add(replace(RECORD, round=2))
        wait_until(lambda: "\n" in shown.getvalue())
    assert [line.split()[1] for line in shown.getvalue().splitlines()] == ["2/1500"]


def test_the_last_words_are_five_lines(tmp_path: Path) -> None:
    about = replace(ABOUT, folder=tmp_path / "runs" / "digits")
    about.folder.mkdir(parents=True)
    experiment = load_experiment("digits")
    left = FinishedModel(
        experiment=experiment, tensors={}, density=0.1, data_name="digits", metric="test_accuracy", score=0.9
    )
    score, rounds, sent, model, following = closing_lines(about, course_of(1500), left)
    assert score == "score   test_accuracy 0.8140, best 0.9000 in round 640"
    assert rounds == "rounds  1500 in 46 s of training, 0.031 s per round"
    assert sent == "sent    471 kB up, 600 kB down per client (on the wire 1.5 MB, 1.2 MB)"
    assert model == f"model   65 of 650 weights (density 0.1), in {about.folder}"
    commands = [f"proxskip-server watch {tmp_path}/runs", f"proxskip-server predict {about.folder}"]
    assert following.split("\n        ") == [f"next    {commands[0]}", commands[1]]
    (about.folder / "report.html").touch()
    *_, following = closing_lines(about, course_of(1), left)
    assert following.split("\n        ") == [f"next    {about.folder}/report.html, for a browser", *commands]


def test_the_commands_of_the_last_words_work_as_they_stand(tmp_path: Path) -> None:
    task = Tabular(target="cost", columns={"age": "0..120"})
    about = replace(ABOUT, folder=tmp_path / "my runs" / "clinics")
    left = FinishedModel(
        experiment=replace(load_experiment("digits"), task=task),
        tensors={"weight": torch.ones(1, 1), "bias": torch.ones(1), "low": torch.zeros(1), "span": torch.ones(1)},
        density=0.1,
        data_name="tables",
        metric="test_r2",
        score=0.9,
    )
    *_, following = closing_lines(about, course_of(1), left)
    assert f"proxskip-server watch '{tmp_path}/my runs'\n" in following
    assert following.endswith(f"proxskip-server predict '{about.folder}' --data PATH")


def test_what_was_before_a_resume_is_counted() -> None:
    whole, resumed = course_of(9), Course("test_accuracy")
    records = [replace(RECORD, round=number, by_client={}) for number in range(1, 9)]  # as rounds.jsonl has them
    records.insert(3, replace(records[0], clients=0))  # or as somebody has edited it
    resumed.catch_up(records, [(number, RECORD.by_client) for number in range(1, 9)])
    resumed.add(replace(RECORD, round=9))
    assert resumed.bytes == whole.bytes
    assert resumed.training_seconds == whole.training_seconds
    assert resumed.counted == whole.counted == {"client-1": 9}
    assert resumed.times_slowest("client-1") == 9


def test_a_sparkline_shows_all_of_a_long_run() -> None:
    assert sparkline([0.0, 0.5, 1.0], 40) == "▁▅█"
    assert sparkline([float(number) for number in range(1000)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.5, 0.5], 40) == "▁▁"
    assert sparkline([0.5], 40) == ""


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(999), "999 B"),
        (bytes_text(9_449), "9.4 kB"),
        (bytes_text(99_960), "100 kB"),
        (bytes_text(999_700), "1.0 MB"),
        (bytes_text(45e6), "45.0 MB"),
        (speed_text(1.1e6), "1.1 Mbit/s"),
        (seconds_text(0.0312), "0.031 s"),
        (seconds_text(0.9996), "1.0 s"),
        (seconds_text(9.96), "10 s"),
        (seconds_text(59.6), "1 min"),
        (seconds_text(200), "3 min 20 s"),
        (seconds_text(7_530), "2 h 5 min"),
        (seconds_text(273_600), "3 d 4 h"),
    ],
)
def test_numbers_as_people_read_them(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(
    ("standings", "line"),
    [
        ([Standing(doing="waiting for a run")], "waiting for a run"),
        (
            [Standing(doing="training", round=8, rounds=15, done=12, of=64, bytes_up=1_600_000, bytes_down=600_000)],
            "round 8 of 15 · training, step 12 of 64 · sent 1.6 MB, got 600 kB",
        ),
        (
            [Standing(doing="downloading", round=8, rounds=15, done=1, of=3)],
            "round 8 of 15 · downloading, 33 % · sent 0 B, got 0 B",
        ),
        (
            [Standing(doing=doing, round=8, rounds=15, bytes_up=500) for doing in ("training", "waiting", "training")],
            "round 8 of 15 · 3 clients: 2 training, 1 waiting · sent 1.5 kB, got 0 B",
        ),
    ],
)
def test_a_client_says_in_a_line_how_far_it_is(standings: list[Standing], line: str) -> None:
    assert line_of(standings) == line


def test_a_client_in_a_log_is_calm() -> None:
    shown = io.StringIO()
    with Screen(Console(file=shown, width=80)) as screen:
        screen.say_as("client-0")("joined\x1b[2J")
        for number in range(1, 50):
            screen.show([Standing(doing="training", round=number, rounds=50)])
        screen._next_line = time.monotonic()
        screen.show([Standing(doing="training", round=50, rounds=50)])
        screen.show([Standing(doing="waiting", round=50, rounds=50)])
    assert shown.getvalue().splitlines() == ["client-0: joined [2J", "round 50 of 50 · training · sent 0 B, got 0 B"]


def test_a_client_on_a_terminal_has_one_line_below_what_it_says() -> None:
    shown = io.StringIO()
    with Screen(Console(file=shown, width=40, force_terminal=True)) as screen:
        screen.show([Standing(doing="waiting for the server at " + "x" * 50)])
        screen.say_as("client-0")("joined")
        screen.show([Standing(doing="waiting for a run")])
    assert "client-0: joined\n" in shown.getvalue()
    assert "waiting for the server at xxxxxxxxxxxxx…" in shown.getvalue()
    assert "waiting for a run" in shown.getvalue()
