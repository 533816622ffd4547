"""What one client does in a round: settle the last one, train, remember, report."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from client.limits import peak_memory
from client.memory import MemoryFile, known_of
from client.part import Part
from client.shared_problem import SharedProblem
from client.state_folder import identity_of
from common.codec.given import Given, given_to_uploads
from common.codec.payload import checksum_of, decode_upload, encode_upload
from common.codec.scales import scale_of
from common.codec.vector import decode, encode
from common.errors import PublicError
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.learning.data import DataFolder
from common.learning.network_task import NetworkTask
from common.learning.task import ClientFiles, Measured, OwnDataProblem, OwnDataTask, Problem, Task
from common.messages.messages import Evaluation, Introduction, Order, Recentring, Report
from common.rounds.algorithm import Algorithm, client_round
from common.rounds.history import History
from common.rounds.state import ClientMemory, Pending, ServerState, Upload
from common.storage.spool import Spool
from common.vectors.divergence import refuse_infinite

StepHeard = Callable[[int, int, int], None]  # hears after each local step: of which round, how many of how many

_shared_problem = SharedProblem()


@dataclass(frozen=True, kw_only=True)
class Station:
    """What a client's own machine decides, whatever the server asks for."""

    name: str
    part: Part | None
    data: Path | None  # the folder of public data sets, or the client's own files
    device: torch.device
    state_folder: Path | None
    wait_for_disk: bool = True  # before an upload; without it a failure of the power may lose the control variate
    local_density: float | None = None  # what the device can hold, if not what the experiment says
    loader_workers: int | None = None  # processes that read ahead, at most


class ForgottenError(PublicError):
    """The control variate that the server counts on is lost."""


class _Stopwatch:
    """Says how long each phase of a round took, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        """Note that a phase is over, and the next one begins."""
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now


class Participant:
    """A client in one run: its loss, its memory, and the method that both sides run."""

    def __init__(
        self,
        introduction: Introduction,
        algorithm: Algorithm,
        problem: Problem,
        own: int,
        like: ServerState,
        device: torch.device,
        memory_file: MemoryFile | None,
        number: int = 0,
    ) -> None:
        self.introduction = introduction
        self.name = introduction.client
        self.like = _on(like, torch.device("meta"))  # the sizes that messages must have, and no numbers
        self._uploaded_like = algorithm.uploaded_like(self.like)
        self.on_step: StepHeard = _ignore
        self._number = number  # by which its roundings differ from those of others
        self._algorithm = algorithm
        self._problem = problem
        self._objective = problem.objective([own])
        self._device = device
        self._memory_file = memory_file
        saved = memory_file.load(self._uploaded_like) if memory_file else None
        self._memory = _moved(saved, device) if saved else algorithm.initial_memory(_on(like, device))

    @classmethod
    def join(cls, experiment: Experiment, station: Station, run: str) -> Participant:
        """Load this client's part of the data and whatever it remembers of the run."""
        algorithm = _for_device(experiment.algorithm, station.local_density)
        experiment = replace(experiment, task=_with_fewer_readers(experiment.task, station.loader_workers))
        problem, own = _load(experiment, station, run)
        like = algorithm.initial_state(problem.initial_state())
        memory_file = None
        if station.state_folder:
            memory_file = MemoryFile(station.state_folder, station.name, run, wait_for_disk=station.wait_for_disk)
        introduction = Introduction(
            client=station.name,
            identity=identity_of(station.state_folder, station.name),
            frozen=problem.frozen_digest(),
        )
        number = station.part.index if station.part else zlib.crc32(station.name.encode())
        return cls(introduction, algorithm, problem, own, like, station.device, memory_file, number)

    def first_state(self) -> ServerState:
        """Return what the first round of a run starts from."""
        return self._algorithm.initial_state(self._problem.initial_state())

    def train(self, order: Order) -> Report[bytes | Spool]:
        """Run a round, which uses the order's model up; asked again for the one just done, send the same bytes."""
        given = given_to_uploads(order.plan, order.state.model)
        if self._is_asked_again(order):
            pending, seconds = self._again(self._near(given)), dict[str, float]()
        else:
            pending, seconds = self._finished(order, given)
        return Report(
            client=self.name,
            round=order.plan.round,
            seconds=seconds,
            peak=peak_memory(self._device),
            upload=pending.sent,
            given=pending.given,
        )

    def kept(self, digest: int) -> Given | None:
        """Return a model that came down before, for another to be given it."""
        model = self._memory.kept.get(digest)
        return None if model is None else Given.of(decode(model, self.like.model.shape[-1]))

    def _near(self, given: Given | None) -> Given | None:
        """Return the model that an upload is given: that of its order, if it is near that."""
        return given if self._algorithm.uploads_are_near else None

    def _again(self, given: Given | None) -> Pending:
        """Return the pending upload, given the model of this order, which is mostly what it was given before."""
        memory, pending = self._memory, self._memory.pending
        assert pending is not None
        if pending.given != (given.digest if given else 0):
            pending = _encoded(pending, self._sent(pending), given)
            self._remember(replace(memory, pending=pending, kept=_with(given, memory.kept)))
        return pending

    def _finished(self, order: Order, given: Given | None) -> tuple[Pending, dict[str, float]]:
        """Run a round, and remember it before anybody hears of it; say what its phases took."""
        watch, plan = _Stopwatch(), replace(order.plan, client=self._number)
        kept = _with(given, self._memory.kept)
        # Kept at once, for the old control to go: should the round fail, the next try finds nothing left to settle.
        self._memory = replace(_finite(self._settled(order)), kept=kept)
        upload, memory = client_round(
            self._algorithm,
            plan,
            _on(order.state, self._device),
            self._memory,
            self._objective,
            on_step=lambda done: self.on_step(plan.round, done, plan.local_steps),
        )
        here = _upload_on_cpu(upload)
        watch.end("train")  # only now: a GPU may have been at it until its result was wanted
        _must_be_finite(here.model)  # here, as no local step looks at numbers
        pending = memory.pending
        assert pending is not None
        reference = None if pending.reference is upload.model else pending.reference
        pending = _encoded(replace(pending, reference=reference), here, self._near(given))
        watch.end("encode")
        self._remember(replace(memory, pending=pending))
        watch.end("save")
        return pending, watch.seconds

    def recentre(self, recentring: Recentring) -> None:
        """Take the mean of all members' control variates from ours; asked again for the same, do nothing."""
        taken = recentring.history.after_recentring(recentring.number, recentring.shift)
        if self._memory.history == taken:
            return
        memory = self._closed(recentring.history, _to(recentring.average, self._device))
        if memory.control is None:
            raise PublicError(f"{type(self._algorithm).__name__} has no control variates to re-centre")
        shifted = memory.control - recentring.shift.to(self._device)
        # On the disk in any case: nobody would notice that it is lost, as one notices of a round.
        self._remember(_finite(replace(memory, control=shifted, history=taken)), wait_for_disk=True)

    def correction(self, order: Order) -> Tensor:
        """Return the control variate as it will be when the round of this order begins; nothing changes by that."""
        state = _on(order.state, self._device)
        centred = self._algorithm.centred(self._algorithm.forget(self._settled(order), state), state)
        if centred is None:
            raise PublicError(f"{type(self._algorithm).__name__} has no control variates to audit")
        return centred.cpu()

    def evaluate(self, state: ServerState) -> Evaluation:
        """Return f_i at a model, and what the client's own held-out data says of it."""
        here = _on(state, self._device)
        loss = float(self._objective.loss(here.model, here.buffers))
        held_out = self._problem.measure(state)[0] if isinstance(self._problem, OwnDataProblem) else Measured(0, {})
        return Evaluation(loss=loss, held_out=held_out)

    def _settled(self, order: Order) -> ClientMemory:
        """Return the memory at the start of a round."""
        if not order.history.counted:  # the server counts on nothing of ours: we are new to it, or were given up
            return self._algorithm.initial_memory(_on(order.state, self._device))
        average = order.state.model if order.average is None else order.average
        return self._closed(order.history, average.to(self._device))

    def _closed(self, told: History, average: Tensor | None) -> ClientMemory:
        """Close the pending round if the server counted it, or forget it: the sum of the h_i stays zero either way."""
        memory, pending = self._memory, self._memory.pending
        if pending is not None and pending.plan.round == told.counted and average is not None:
            history = memory.history.after_round(told.counted, pending.checksum)
            memory = replace(self._algorithm.settle(self._recalled(), average), history=history)
        if self._algorithm.has_control and memory.history != told:
            raise ForgottenError(_what_is_lost(self.name, told, memory.history))
        return replace(memory, pending=None)

    def _recalled(self) -> ClientMemory:
        """Return the memory with the reference of its pending round, to be used up: it is mostly what was sent."""
        memory, pending = self._memory, self._memory.pending
        if pending is None or not self._algorithm.has_control:
            return memory
        if pending.reference is None:
            reference = self._sent(pending).model.to(self._device)
        else:
            reference = pending.reference.clone()
        return replace(memory, pending=replace(pending, reference=reference))

    def _sent(self, pending: Pending) -> Upload:
        """Return the upload of a pending round."""
        sent = decode_upload(pending.sent, self._uploaded_like, known=known_of(pending, self._memory.kept, self.like))
        control, buffers = (None if one is None else one.dense() for one in (sent.control_change, sent.buffers))
        return Upload(model=sent.model.dense(), control_change=control, buffers=buffers)

    def _is_asked_again(self, order: Order) -> bool:
        """Say whether the pending upload is of an order's round, and made with the control that is counted on."""
        memory, pending = self._memory, self._memory.pending
        if pending is None or pending.plan.round != order.plan.round:
            return False
        if not self._algorithm.answers(pending.plan, order.plan):
            return False
        return memory.history == order.history or not self._algorithm.has_control

    def _remember(self, memory: ClientMemory, *, wait_for_disk: bool = False) -> None:
        """Go on with a memory that is safe."""
        if self._memory_file:
            self._memory_file.save(memory, wait_for_disk=wait_for_disk)
        self._memory = memory


def _with(given: Given | None, kept: Mapping[int, bytes | Spool]) -> dict[int, bytes | Spool]:
    """Return the last two models: the server may not hear of the last one, and go on from the one before."""
    if given is None:
        return dict(kept)
    others = [(digest, model) for digest, model in kept.items() if digest != given.digest]
    # Also where that digest is there: a server can make another model have it, and uploads are given this one.
    return {**dict(others[-1:]), given.digest: encode(given.entries.dense())}


def _encoded(pending: Pending, upload: Upload, given: Given | None) -> Pending:
    """Return a pending round with its upload, given a model that is kept."""
    sent = encode_upload(upload, scale_of(pending.plan), given.entries if given else None)
    return replace(pending, sent=sent, given=given.digest if given else 0, checksum=checksum_of(sent))


def _finite(memory: ClientMemory) -> ClientMemory:
    """Return a memory that one can go on with: a control that is not finite would never be again."""
    if memory.control is not None:
        _must_be_finite(memory.control)
    return memory


def _must_be_finite(vector: Tensor) -> None:
    refuse_infinite(finite=all(math.isfinite(one) for one in torch.aminmax(vector)))


def _what_is_lost(client: str, told: History, remembered: History) -> str:
    """Return why a control is not the one that the server counts on, and how to keep that from happening."""
    if (told.counted, told.recentred) == (remembered.counted, remembered.recentred):
        remembers = "another course of it: its memory, or the server's journal, is a copy that was put back"
    else:
        remembers = str(remembered)
    return (
        f"the server counts on the control variate of {client} with {told}, but {client} remembers {remembers}: it is "
        "lost; where clients may be restarted in mid-run start them with --state DIR, and never put back an older copy"
    )


def _for_device(algorithm: Algorithm, local_density: float | None) -> Algorithm:
    """Return the method as this device can run it."""
    if local_density is None:
        return algorithm
    if not algorithm.has_option("local_density"):
        name = plugins.name_of(Algorithm.plugin_package, type(algorithm))
        raise PublicError(
            f"--local-density: the server runs {name}, whose local steps cannot be pruned more; hybrid can"
        )
    try:
        return replace(algorithm, local_density=local_density)  # type: ignore[call-arg]
    except ValueError as error:
        raise PublicError(f"--local-density {local_density:g}: {error}") from None


def _with_fewer_readers(task: Task, most: int | None) -> Task:
    """Return the task with no more processes that read ahead than the owner allows: what they read is the same."""
    if most is None or not isinstance(task, NetworkTask):
        return task
    return replace(task, loader_workers=min(most, task.loader_workers))


def _load(experiment: Experiment, station: Station, run: str) -> tuple[Problem, int]:
    """Return the problem with this client's data in it, and which of its clients this is."""
    task, part = experiment.task, station.part
    if isinstance(task, OwnDataTask):
        if part is not None:
            raise PublicError(f"the clients of {experiment.name} have data of their own: leave out --partition")
        if station.data is None:
            raise PublicError(f"the clients of {experiment.name} have data of their own: say where with --data PATH")
        files = [ClientFiles(station.name, station.data)]
        return task.problem(files, clients=experiment.clients, seed=experiment.seed, device=station.device), 0
    if part is None:
        raise PublicError(f"the task of {experiment.name} deals out its data: say which part with --partition I/N")
    if part.of != experiment.clients:
        raise PublicError(
            f"this client holds part {part.index} of {part.of}, "
            f"but the server's experiment {experiment.name} has {experiment.clients} clients"
        )
    return _shared_problem.load(experiment, DataFolder.choose(station.data), station.device, run), part.index


def _ignore(number: int, done: int, of: int) -> None:
    """Hear nothing of local steps."""


def _on(state: ServerState, device: torch.device) -> ServerState:
    return ServerState(
        model=state.model.to(device), control=_to(state.control, device), buffers=_to(state.buffers, device)
    )


def _upload_on_cpu(upload: Upload) -> Upload:
    cpu = torch.device("cpu")
    return Upload(
        model=upload.model.to(cpu),
        control_change=_to(upload.control_change, cpu),
        buffers=_to(upload.buffers, cpu),
    )


def _moved(memory: ClientMemory, device: torch.device) -> ClientMemory:
    pending = memory.pending
    if pending is not None:
        pending = replace(pending, reference=_to(pending.reference, device))
    return replace(memory, control=_to(memory.control, device), pending=pending)


def _to(vector: Tensor | None, device: torch.device) -> Tensor | None:
    return None if vector is None else vector.to(device)
