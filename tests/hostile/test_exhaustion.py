"""A server that wants all of a client's memory or time: what comes down is checked before anything is made of it."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.errors import MessageError, UserError
from common.experiment.files import load_experiment, told_experiment
from common.messages.content import head_of, payload_of
from common.messages.messages import pack_order, pack_state, unpack_order, unpack_run
from common.rounds.history import History
from common.rounds.schedule import MOST_LOCAL_STEPS
from common.rounds.state import RoundPlan, ServerState
from tests.harness.hostile_server import HostileServer, saying, serving, task, welcome
from tests.harness.processes import client_process, wait_until

EXPERIMENT = load_experiment("digits", ["clients=1"])
STATE = EXPERIMENT.load_for_server(None, torch.device("cpu")).initial_state()
PLAN = EXPERIMENT.plan(2)
LEAVE_SECONDS = 2.0


def with_task(**options: object) -> str:
    options = {"name": "digits", **options}
    inside = ", ".join(f"{key}: {value}" for key, value in options.items())
    return f"name: x\nrounds: 1\nclients: 1\ntask: {{{inside}}}\nalgorithm: {{name: fedavg, learning_rate: 0.1}}\n"


def bomb(levels: int = 5) -> str:
    """Return lists of aliases to lists of aliases: each level makes nine of the one before."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join([*lines, ""])


MANY, SOME = (" | ".join(map(str, range(count))) for count in (12_000, 4_000))
# What a server asks for, and a word of why it gets nothing.
GREEDY = {
    "aliases": bomb(),
    "in each other": "a: " + "[" * 100 + "\n",
    "are the most": with_task() + "#" * 100_000,
    "more than 100 algorithms": with_task() + "for_algorithm:\n" + "".join(f"  a{n}: {{}}\n" for n in range(200)),
    "digits": with_task() + f"seed: 0x{'f' * 90_000}\n",
    "task.width = 1000000": with_task(name="cifar10", width=10**6),
    "task.width = 'wide'": with_task(name="cifar10", width="wide"),
    "task.width = True": with_task(name="cifar10", width="true"),
    "task.batch_size = 10000000": with_task(name="cifar10", batch_size=10**7),
    "task.loss_samples = 10000000": with_task(name="cifar10", loss_samples=10**7),
    "task.image_size = 100000": with_task(name="image_folder", classes="[a, b]", image_size=10**5),
    "micro_batch = 64: at most 32": with_task(
        name="image_folder", classes="[a, b]", image_size=1024, batch_size=4096, micro_batch=64
    ),
    "batch_size = 4096: at most 32": with_task(name="image_folder", classes="[a, b]", image_size=1024, batch_size=4096),
    "classes: 2000": with_task(name="image_folder", classes=[f"c{n}" for n in range(2_000)]),
    "12001 features": with_task(name="tabular", target="y", columns=f"{{a: {MANY}}}"),
    "4000 outputs": with_task(name="tabular", target="y", columns=f"{{a: {SOME}}}", classes=SOME),
    "columns.a = '0..1e300'": with_task(name="tabular", target="y", columns="{a: 0..1e300}"),
    "clients = 1000000000": with_task().replace("clients: 1", "clients: 1000000000"),
    "rounds = 1000000000000": with_task().replace("rounds: 1", "rounds: 1000000000000"),
    "schedule.period = 1000000000000000.0": with_task() + "schedule: {period: 1.0e+15}\n",
    "schedule.period = 'long'": with_task() + "schedule: {period: long}\n",
    "seed = 'x'": with_task() + "seed: x\n",
    "task: expected a section": with_task().replace("{name: digits}", "text"),
}


@pytest.mark.parametrize("word", GREEDY)
def test_an_experiment_beyond_all_bounds_is_refused_at_once(word: str) -> None:
    started = time.process_time()
    with pytest.raises(UserError) as refused:
        told_experiment(GREEDY[word], [], [])
    assert word in str(refused.value)
    assert time.process_time() - started < 5


def test_settings_and_the_name_of_a_run_have_bounds_too() -> None:
    with pytest.raises(UserError, match="more than 100000 characters"):
        unpack_run({"experiment": "digits", "settings": "seed=1 " * 20_000}, 1, allowed=())
    with pytest.raises(UserError, match="sections in each other"):
        unpack_run({"experiment": "digits", "settings": "a." * 1_000 + "b=1"}, 1, allowed=())
    for name in ("x" * 1_000, "\x1b[2J"):
        with pytest.raises(MessageError, match="printable characters"):
            unpack_run({"experiment": "digits", "run": name}, 1, allowed=())


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("round", 0),
        ("local_steps", 0),
        ("local_steps", 2**32 - 1),
        ("probability", 0.0),
        ("probability", 1.5),
        ("probability", float("nan")),
        ("learning_rate", float("inf")),
        ("learning_rate", -1.0),
        ("learning_rate", 1e-300),
        ("density", 0.0),
        ("density", 2.0),
        ("density", float("nan")),
    ],
)
def test_a_plan_beyond_its_ranges_is_refused(name: str, number: float) -> None:
    order = pack_order("train", pack_state(STATE), replace(PLAN, **{name: number}), History())  # type: ignore[arg-type]
    with pytest.raises(MessageError, match=f"a plan with {name} = "):
        unpack_order(order, STATE)


def test_an_order_that_is_not_finite_is_refused() -> None:
    state = ServerState(model=torch.full_like(STATE.model, torch.inf))
    with pytest.raises(MessageError, match="not finite"):
        unpack_order(pack_order("train", pack_state(state), PLAN, History()), STATE)


def training(plan: RoundPlan, experiment: str) -> HostileServer:
    content = pack_order("train", pack_state(STATE), plan, History())
    payload = payload_of(content)
    order = task(1, question=head_of(content), payload_bytes=len(payload), piece=payload[:])
    return HostileServer(saying(welcome(experiment), order))


def seconds_to_leave(process: subprocess.Popen[bytes], number: signal.Signals) -> float:
    started = time.monotonic()
    process.send_signal(number)
    process.wait(60)
    return time.monotonic() - started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_client_in_a_training_without_end_leaves_when_it_is_told(number: signal.Signals, tmp_path: Path) -> None:
    server, log = training(replace(PLAN, local_steps=MOST_LOCAL_STEPS), EXPERIMENT.to_yaml()), tmp_path / "log"
    with serving(server) as address, client_process(address, "--insecure", "--partition", "0/1", log=log) as process:
        wait_until(lambda: bool(server.progress))
        assert seconds_to_leave(process, number) < LEAVE_SECONDS
        assert process.returncode == 0
    assert not server.answers
    assert "Traceback" not in log.read_text()


STEP = """
import time
from dataclasses import dataclass
from common.learning.objectives.softmax import SoftmaxRegression
from common.tasks.digits import Digits

def gradient(self, weights):
    open("in-a-step", "w").close()
    {does}

@dataclass(frozen=True, kw_only=True)
class Slow(Digits):
    def load(self, data, **options):
        SoftmaxRegression.gradient = gradient
        return super().load(data, **options)
"""


@pytest.mark.parametrize("does", ["time.sleep(60)", "while True: pass"])
def test_a_client_in_a_step_without_end_leaves_when_it_is_told(does: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(STEP.format(does=does))
    text = EXPERIMENT.to_yaml().replace("name: digits\n  conc", "name: slow:Slow\n  conc")
    server, log = training(PLAN, text), tmp_path / "log"
    arguments = ("--insecure", "--partition", "0/1", "--allow-task", "slow:Slow")
    with (
        serving(server) as address,
        client_process(address, *arguments, log=log, cwd=tmp_path) as process,
    ):
        wait_until((tmp_path / "in-a-step").exists)
        assert seconds_to_leave(process, signal.SIGTERM) < LEAVE_SECONDS
