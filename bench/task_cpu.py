"""Where the processor's time of a small round goes: `python -m bench.task_cpu`.

Rounds of many clients on two cores take as long as the processors are at work; so that is what is counted, in
microseconds per task: of all processes in a real run, and of the parts that can be done alone. The rest is the link:
gRPC, its threads and frames, the loop that waits for them, and the strategy.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from flwr.app import Context, RecordDict

from bench.federation import PROCESSES, VALUES, Case, clients_at, in_a_process
from bench.payload import PayloadProblem
from client.app import answering
from client.part import Part
from client.round import Participant, Station
from common.codec.payload import encode_upload
from common.messages.content import content_of, head_of, payload_of
from common.messages.messages import Run, pack_order, pack_state, unpack_order, unpack_report
from common.rounds.history import History
from common.rounds.mean import RunningMean
from common.rounds.outliers import Change
from common.rounds.state import ServerState, Upload
from common.storage.slots import Slots
from server.link.hub import Hub
from tests.harness.witness import Witness

CASE = Case(50, "4 kB", 300)
TASKS = 500
WARM_ROUNDS = 20
MICROSECONDS = 1e6
CONTEXT = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def run() -> dict[str, float]:
    """Return the microseconds of a task, by what they go for."""
    in_a_run = in_a_process(_in_a_run, CASE)
    alone = in_a_process(_alone, CASE)
    return {**in_a_run, **alone}


def _in_a_run(case: Case) -> dict[str, float]:
    """Run a case, and return what server and clients spend on a task."""
    spent: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(dir=".") as name, ExitStack() as stack:  # on a disk, as /tmp may be none
        hub = stack.enter_context(Hub("127.0.0.1:0"))
        processes = [stack.enter_context(clients_at(hub.address, case, one, Path(name))) for one in range(PROCESSES)]

        def look() -> None:
            spent.append((_seconds_of(os.getpid()), sum(_seconds_of(one.pid) for one in processes)))

        problem = PayloadProblem(case.nodes, VALUES[case.payload])
        with hub.run(Run(experiment=case.experiment, name="bench")) as grid:
            for rounds in (WARM_ROUNDS, case.rounds):  # in the first clients load what they need
                look()
                witness = Witness(Case(case.nodes, case.payload, rounds).experiment, problem=problem)
                witness.run(grid)
        look()
    (server, clients), (server_end, clients_end) = spent[1:]
    tasks = case.nodes * case.rounds / MICROSECONDS
    return {"server, all": (server_end - server) / tasks, "client, all": (clients_end - clients) / tasks}


def _seconds_of(pid: int) -> float:
    """Return the processor's time that a process has taken, in itself and for it in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _alone(case: Case) -> dict[str, float]:
    """Return what the parts of a task take, one after the other in this process."""
    torch.set_num_threads(1)
    state = PayloadProblem(case.nodes, VALUES[case.payload]).initial_state()
    orders = _orders(case, state)
    upload = Upload(model=state.model)
    with tempfile.TemporaryDirectory(dir=".") as name:
        slots = Slots(Path(name) / "memory", "a client's memory")
        write = partial(slots.write, {"sent": state.model}, {"plan": "p" * 300})
        answer, careless = (_answers(case, orders, Path(name), wait_for_disk=one) for one in (True, False))
        report, total = answer(), RunningMean()

        def count() -> None:
            told = unpack_report(content_of(head_of(report), payload_of(report)), state)
            total.add(told.upload, Change(state, lambda: None))

        parts: dict[str, Callable[[], object]] = {
            "client: an order read": lambda: unpack_order(orders[0], state),
            "client: an upload encoded": lambda: encode_upload(upload),
            "client: its memory written, and waited for the disk": write,
            "client: the whole answer": answer,
            "client: the whole answer, without waiting for the disk": careless,
            "server: an upload decoded and added": count,
        }
        return {what: _microseconds(action) for what, action in parts.items()}


def _orders(case: Case, state: ServerState) -> list[RecordDict]:
    arrays = pack_state(state)
    packed = (pack_order("train", arrays, case.experiment.plan(one), History()) for one in range(1, TASKS + 3))
    return [content_of(head_of(one), payload_of(one)) for one in packed]


def _answers(case: Case, orders: list[RecordDict], folder: Path, *, wait_for_disk: bool) -> Callable[[], RecordDict]:
    """Return what answers one order after the other, as a client does it."""
    station = Station(
        name=f"client-{wait_for_disk:d}",
        part=Part(0, case.nodes),
        data=None,
        device=torch.device("cpu"),
        state_folder=folder,
        wait_for_disk=wait_for_disk,
    )
    participant = Participant.join(case.experiment, station, "bench")
    answer, waiting = answering(lambda _: participant, print), iter(orders)

    def one() -> RecordDict:
        said = answer(next(waiting), CONTEXT)
        assert isinstance(said, RecordDict), said
        return said

    return one


def _microseconds(action: Callable[[], object]) -> float:
    action()
    started = time.process_time()
    for _ in range(TASKS):
        action()
    return MICROSECONDS * (time.process_time() - started) / TASKS


if __name__ == "__main__":
    for what, microseconds in run().items():
        print(f"{what}: {microseconds:.0f} us per task")
