"""Every algorithm against the textbook: the same iterates and controls, round by round."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from common.experiment import plugins
from common.experiment.experiment import Codec, Experiment
from common.randomness import stream
from common.rounds.algorithm import Algorithm, client_round, server_round
from common.rounds.history import History
from common.rounds.ledger import Checkpoint
from common.rounds.mean import RunningMean
from common.rounds.objective import Gradient, Objective
from common.rounds.schedule import Schedule, ScheduleKind, local_steps
from common.rounds.state import ClientMemory, Precision, ServerState, Upload
from common.vectors.sparsity import kept_count, top_k
from server.simulation.simulation import Simulation
from tests.harness import textbook
from tests.harness.quadratics import ClientByClient, QuadraticProblem, Quadratics, random_problem

NAMES = plugins.available(Algorithm.plugin_package)
ROUNDS, CLIENTS, SIZE, DENSITY, STEP, PERIOD = 40, 5, 12, 0.25, 0.1, 4.0
OPTIONS: dict[str, dict[str, float]] = {
    "hybrid": {"local_density": 0.5},
    "locodl": {"control_step": 0.3, "upload_density": DENSITY},
    "randprox_l1": {"l1_strength": 0.2},
    "sparse_proxskip_arena": {"arena": 2.5, "exploration": 1.0, "dense_rounds": 3},
}
DENSE = {"fedavg", "scaffold", "proxskip"}
WITH_CONTROL = [name for name in NAMES if plugins.find("strategies", name, Algorithm).has_control]
LOSE_THE_ZERO_SUM = {"fedcomloc_global", "server_pruning", "sparse_proxskip_modified"}
TABLE = {
    "fedavg",
    "fedcomloc_com",
    "fedcomloc_global",
    "fedcomloc_local",
    "fedht",
    "fediht",
    "fedsparsify",
    "final_topk",
    "hybrid",
    "locodl",
    "proxskip",
    "randprox_l1",
    "scaffold",
    "server_pruning",
    "server_pruning_modified",
    "sparse_proxskip",
    "sparse_proxskip_arena",
    "sparse_proxskip_local",
    "sparse_proxskip_modified",
    "tamuna",
}


def make_algorithm(name: str, **options: float) -> Algorithm:
    settings = {"density": DENSITY, "learning_rate": STEP, **OPTIONS.get(name, {}), **options}
    chosen: Algorithm = plugins.find(Algorithm.plugin_package, name, Algorithm)(**settings)
    return chosen


def make_experiment(name: str, kind: ScheduleKind | None = None, **options: float) -> Experiment:
    algorithm = make_algorithm(name, **options)
    return Experiment(
        name=name,
        rounds=ROUNDS,
        clients=CLIENTS,
        task=Quadratics(size=SIZE),
        algorithm=algorithm,
        schedule=Schedule(kind=kind or algorithm.default_schedule, period=PERIOD),
        codec=Codec(precision="float32", encode_in_simulation=False),  # the books round nothing
    )


def simulation_of(experiment: Experiment, problem: QuadraticProblem) -> Simulation:
    return Simulation(experiment, problem, torch.device("cpu"))


def models_of(experiment: Experiment, problem: QuadraticProblem) -> list[Tensor]:
    simulation = simulation_of(experiment, problem)
    return [simulation.state.model for _ in simulation.rounds()]


def controls_of(simulation: Simulation) -> list[np.ndarray]:
    (cohort,) = simulation.cohorts
    download = cohort.download(simulation.state)
    correction = simulation.algorithm.correction(simulation.algorithm.forget(cohort.memory, download), download)
    return [] if correction is None else [row.double().numpy() for row in correction]


def textbook_history(experiment: Experiment, name: str, problem: QuadraticProblem) -> textbook.History:
    curvature, centre = problem.curvature.double().numpy(), problem.centre.double().numpy()

    def gradient_of(client: int) -> Callable[[textbook.Vector], textbook.Vector]:
        return lambda w: np.asarray(curvature[client] @ (w - centre[client]))

    constants = textbook.Constants(
        start=problem.start.double().numpy(),
        kept=kept_count(DENSITY, SIZE),
        step=STEP,
        period=PERIOD,
        locally_kept=kept_count(0.5, SIZE),
        shrinkage=0.2,
        control_step=0.3,
        senders=2,
        arena=8,  # 2.5 times K = 3
        explored=3,
        dense_rounds=3,
        draw=partial(stream, experiment.seed),
    )
    thetas = textbook.thetas_of_period(PERIOD, ROUNDS)
    if experiment.schedule.kind == "coin":
        steps = [local_steps(experiment.schedule, experiment.seed, number) for number in range(1, ROUNDS + 1)]
        thetas = [theta for count in steps for theta in [0] * (count - 1) + [1]]
    history: textbook.History = getattr(textbook, name)(
        [gradient_of(client) for client in range(CLIENTS)], constants, thetas
    )
    return history


def test_the_table_of_algorithms_is_complete() -> None:
    assert set(NAMES) >= TABLE
    assert all(hasattr(textbook, name) for name in TABLE)


@pytest.mark.parametrize("kind", ["coin", "period"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(textbook, name)])
def test_same_iterates_and_controls_as_the_textbook(
    name: str, dtype: torch.dtype, tolerance: float, kind: ScheduleKind
) -> None:
    problem = random_problem(CLIENTS, SIZE, seed=7, dtype=dtype)
    experiment = make_experiment(name, kind)
    history = textbook_history(experiment, name, problem)
    simulation = simulation_of(experiment, problem)
    for record, (model, controls) in zip(simulation.rounds(), history, strict=True):
        ours = simulation.state.model.double().numpy()
        assert np.linalg.norm(ours - model) <= tolerance * np.linalg.norm(model), f"round {record.round}"
        our_controls = controls_of(simulation)
        assert len(our_controls) == len(controls)
        for our, their in zip(our_controls, controls, strict=True):
            assert np.linalg.norm(our - their) <= 10 * tolerance * np.linalg.norm(their), f"round {record.round}"


@pytest.mark.parametrize("name", NAMES)
def test_a_round_changes_nothing_that_it_was_given_but_the_model_that_becomes_its_own(name: str) -> None:
    problem = random_problem(CLIENTS, SIZE, seed=9)
    experiment = make_experiment(name)
    algorithm = experiment.algorithm
    state = algorithm.initial_state(ServerState(model=torch.linspace(-1, 1, SIZE)))
    memory = algorithm.initial_memory(state)
    if memory.control is not None:
        memory = replace(memory, control=torch.linspace(1, 2, SIZE))
    state_before, memory_before = copy.deepcopy((state, memory))
    objective = problem.objective([0])
    plan = replace(experiment.plan(2), seats=(0,))
    first, remembered = client_round(algorithm, plan, given_away(state), memory, objective)
    second, again = client_round(algorithm, plan, given_away(state), memory, objective)
    assert numbers_in(first) == numbers_in(second)
    assert remembered.pending is not None
    assert remembered.pending.plan.round == 2
    settled = [algorithm.settle(one, state.model) for one in (remembered, again)]
    assert numbers_in(settled[0]) == numbers_in(settled[1])
    assert settled[0].pending is None
    assert numbers_in(state_before) == numbers_in(state)
    assert numbers_in(memory_before) == numbers_in(memory)


class WithPoint(Objective):
    """A loss that reads its weights at one place, as a network does, and gives its gradient at another."""

    def __init__(self, loss: Objective) -> None:
        self._loss = loss

    @contextmanager
    def round(self, number: int, buffers: Tensor | None) -> Iterator[Gradient]:
        with self._loss.round(number, buffers) as gradient:
            yield GradientAtPoint(gradient)

    def loss(self, weights: Tensor, buffers: Tensor | None) -> Tensor:
        return self._loss.loss(weights, buffers)


class GradientAtPoint(Gradient):
    def __init__(self, gradient: Gradient) -> None:
        self._gradient = gradient
        self._weights, self._found = torch.full((SIZE,), torch.nan), torch.full((SIZE,), torch.nan)
        self.point = self._weights

    def __call__(self, weights: Tensor) -> Tensor:
        if weights is not self.point:
            self._weights.copy_(weights)
        return self._found.copy_(self._gradient(self._weights))


@pytest.mark.parametrize("name", NAMES)
def test_where_a_network_reads_its_weights_makes_no_difference(name: str) -> None:
    experiment = make_experiment(name)
    algorithm, objective = experiment.algorithm, random_problem(CLIENTS, SIZE, seed=9).objective([0])
    state = algorithm.initial_state(ServerState(model=torch.linspace(-1, 1, SIZE)))
    memory, plan = algorithm.initial_memory(state), replace(experiment.plan(2), seats=(0,))
    rounds = [
        client_round(algorithm, plan, given_away(state), memory, one) for one in (objective, WithPoint(objective))
    ]
    (expected, _), (found, _) = rounds
    assert numbers_in(expected) == numbers_in(found)
    expected_control, found_control = (algorithm.settle(remembered, state.model) for _, remembered in rounds)
    assert numbers_in(expected_control) == numbers_in(found_control)


def given_away(state: ServerState) -> ServerState:
    return replace(state, model=state.model.clone())


def numbers_in(thing: ServerState | Upload | ClientMemory) -> list[list[float]]:
    found = [getattr(thing, name) for name in type(thing).__slots__]
    return [tensor.tolist() for tensor in found if isinstance(tensor, Tensor)]


@pytest.mark.parametrize("name", NAMES)
def test_the_model_that_is_kept_has_the_target_density(name: str) -> None:
    simulation = simulation_of(make_experiment(name), random_problem(CLIENTS, SIZE, seed=4))
    for _ in simulation.rounds():
        assert torch.equal(simulation.kept().model, top_k(simulation.state.model, 1.0 if name in DENSE else DENSITY))


def test_dense_methods_have_density_one_and_their_sparse_heirs_have_not() -> None:
    assert {name for name in NAMES if make_algorithm(name).density == 1.0} == DENSE


@pytest.mark.parametrize(
    "name", ["fediht", "sparse_proxskip", "sparse_proxskip_local", "sparse_proxskip_modified", "hybrid"]
)
def test_pruned_uploads_have_the_target_density(name: str) -> None:
    simulation = simulation_of(make_experiment(name), random_problem(CLIENTS, SIZE, seed=4))
    assert all(record.density_up <= DENSITY for record in simulation.rounds())


@pytest.mark.parametrize("name", NAMES)
def test_uploads_are_as_sparse_as_the_server_will_insist(name: str) -> None:
    simulation = simulation_of(make_experiment(name), random_problem(CLIENTS, SIZE, seed=3, dtype=torch.float32))
    allowed = simulation.algorithm.most_uploaded(simulation.experiment.plan(1), SIZE)
    densities = [record.density_up for record in simulation.rounds()]
    assert max(densities) <= allowed / SIZE
    if allowed == SIZE and name != "randprox_l1":  # which is as sparse as it happens to be
        assert max(densities) == 1, "an algorithm with sparse uploads should say so: uploads_are_pruned"


@pytest.mark.parametrize("name", NAMES)
def test_client_by_client_equals_one_batch(name: str) -> None:
    batch = random_problem(CLIENTS, SIZE, seed=3, dtype=torch.float64)
    single = ClientByClient(batch.curvature, batch.centre, batch.start)
    one, other = simulation_of(make_experiment(name), batch), simulation_of(make_experiment(name), single)
    for record, single_record in zip(one.rounds(), other.rounds(), strict=True):
        assert torch.allclose(one.state.model, other.state.model, rtol=1e-12, atol=1e-13)
        assert record.paper_bits_up == single_record.paper_bits_up


def hand_experiment(name: str, period: float, **options: float) -> Experiment:
    return replace(
        make_experiment(name, None, **options), rounds=2, clients=2, schedule=Schedule(kind="period", period=period)
    )


def test_proxskip_by_hand() -> None:
    # f_1 = (w - 1)^2 / 2, f_2 = (w - 3)^2 / 2, gamma = 1/2, p = 1/2, one step and then two steps, from w = 0.
    # Round 1: w~ = 1/2, 3/2; mean 1; h = 0 + 1 * (1 - w~) = 1/2, -1/2.
    # Round 2, from 1: step 1: client 1: 1 - (0 - 1/2)/2 = 5/4; client 2: 1 - (-2 + 1/2)/2 = 7/4.
    #          step 2: client 1: 5/4 - (1/4 - 1/2)/2 = 11/8; client 2: 7/4 - (-5/4 + 1/2)/2 = 17/8; mean 7/4.
    problem = QuadraticProblem(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]), torch.zeros(1))
    models = models_of(hand_experiment("proxskip", period=2, learning_rate=0.5), problem)
    assert [model.tolist() for model in models] == [[1.0], [1.75]]


def test_sparse_proxskip_by_hand() -> None:
    # Two clients, d = 2, K = 1, gamma = 1, p = 1: centres (2, 1) and (1, 4), from w = 0.
    # Round 1: w~ = (2, 1), (1, 4); w^ = (2, 0), (0, 4); mean (1, 2); h = mean - w^ = (-1, 2), (1, -2).
    # Round 2: TopK(1, 2) = (0, 2). Client 1: (1, 2) - ((0, 2) - (2, 1) - (-1, 2)) = (1, 2) - (-1, -1) = (2, 3).
    #          Client 2: (1, 2) - ((0, 2) - (1, 4) - (1, -2)) = (1, 2) - (-2, 0) = (3, 2). w^ = (0, 3), (3, 0).
    #          mean (3/2, 3/2), pruned to (3/2, 0): of equals, the lowest index stays.
    problem = QuadraticProblem(torch.eye(2).expand(2, 2, 2), torch.tensor([[2.0, 1.0], [1.0, 4.0]]), torch.zeros(2))
    simulation = simulation_of(hand_experiment("sparse_proxskip", period=1, learning_rate=1.0, density=0.5), problem)
    first, second = simulation.step(), simulation.step()
    assert simulation.state.model.tolist() == [1.5, 1.5]
    assert simulation.kept().model.tolist() == [1.5, 0.0]
    assert [first.paper_bits_up, second.paper_bits_up] == [32.0, 64.0]
    assert [first.density_down, second.density_down] == [0.0, 1.0]


def test_scaffold_pays_for_its_control_too() -> None:
    record = simulation_of(make_experiment("scaffold"), random_problem(CLIENTS, SIZE, seed=8)).step()
    assert record.density_up == 1.0
    assert record.paper_bits_up == 32 * 2 * SIZE


@pytest.mark.parametrize("kind", ["coin", "period"])
def test_sparse_proxskip_at_density_one_is_proxskip(kind: ScheduleKind) -> None:
    problem = random_problem(CLIENTS, SIZE, seed=5)
    sparse = models_of(make_experiment("sparse_proxskip", kind, density=1.0), problem)
    dense = models_of(make_experiment("proxskip", kind), problem)
    assert all(torch.equal(one, other) for one, other in zip(sparse, dense, strict=True))


def test_hybrid_at_its_loose_end_is_sparse_proxskip() -> None:
    problem = random_problem(CLIENTS, SIZE, seed=6)
    straight_through = models_of(make_experiment("sparse_proxskip"), problem)
    loose = models_of(make_experiment("hybrid", local_density=1.0), problem)
    tight = models_of(make_experiment("hybrid", local_density=DENSITY), problem)
    assert all(torch.equal(one, other) for one, other in zip(straight_through, loose, strict=True))
    assert not torch.equal(straight_through[-1], tight[-1])


@pytest.mark.parametrize("kind", ["coin", "period"])
def test_fedcomloc_global_is_server_pruning(kind: ScheduleKind) -> None:
    problem = random_problem(CLIENTS, SIZE, seed=11)
    one, other = (models_of(make_experiment(name, kind), problem) for name in ("fedcomloc_global", "server_pruning"))
    assert all(model.equal(twin) for model, twin in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["proxskip", "scaffold", "locodl", "tamuna"])
def test_dense_methods_with_controls_find_the_optimum_though_clients_differ(name: str) -> None:
    problem = random_problem(CLIENTS, SIZE, seed=13, dtype=torch.float64)
    options = {} if name in DENSE else {"density": 1.0}
    simulation = simulation_of(replace(make_experiment(name, None, **options), rounds=1500), problem)
    distances = [-problem.evaluate(simulation.state)["test_closeness"] for _ in simulation.rounds()]
    assert distances[-1] < 1e-6 * distances[0]


@pytest.mark.parametrize("rounds", [200, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WITH_CONTROL)
def test_sum_of_controls_over_many_rounds(name: str, rounds: int) -> None:
    experiment = replace(make_experiment(name), rounds=rounds)
    simulation = simulation_of(experiment, random_problem(CLIENTS, SIZE, seed=11))
    sums = [record.control_sum_norm for record in simulation.rounds() if record.control_sum_norm is not None]
    assert len(sums) == rounds
    if name in LOSE_THE_ZERO_SUM:
        assert max(sums) > 0.1  # the paper shows these to fail, and they do
    else:
        assert max(sums) < 1e-5


@pytest.mark.parametrize("name", [name for name in WITH_CONTROL if name not in LOSE_THE_ZERO_SUM])
def test_the_sum_survives_a_client_that_misses_a_round(name: str) -> None:
    experiment = make_experiment(name)
    algorithm = experiment.algorithm
    problem = random_problem(CLIENTS, SIZE, seed=12)
    state = algorithm.initial_state(problem.initial_state())
    memories = [algorithm.initial_memory(state) for _ in range(CLIENTS)]
    for number in range(1, 11):
        plan = experiment.plan(number)
        counted = [client for client in range(CLIENTS) if not (client == 1 and number in (3, 4))]
        average = RunningMean()
        for client in counted:
            own, objective = replace(plan, seats=(client,)), problem.objective([client])
            upload, memories[client] = client_round(algorithm, own, given_away(state), memories[client], objective)
            average.add(upload)
        before = Checkpoint(round=number - 1, state=state)
        of_counted = replace(plan, seats=tuple(counted))
        state, _ = server_round(algorithm, of_counted, before, average, participation=len(counted) / CLIENTS)
        for client in counted:
            settled = algorithm.settle(memories[client], state.model)
            memories[client] = replace(settled, history=History(counted=number))
    found = [algorithm.centred(algorithm.forget(memory, state), state) for memory in memories]
    centred = torch.stack([one for one in found if one is not None])
    assert len(centred) == CLIENTS
    assert centred.sum(0).norm() < 1e-5 * centred.norm(dim=-1).sum()


@pytest.mark.parametrize("precision", ["bfloat16", "grid"])
@pytest.mark.parametrize("name", NAMES)
def test_rounded_uploads_keep_the_zero_sum(name: str, precision: Precision) -> None:
    experiment = make_experiment(name)
    problem = random_problem(CLIENTS, SIZE, seed=2)
    rounded = simulation_of(replace(experiment, codec=Codec(precision=precision)), problem)
    sums = [record.control_sum_norm or 0.0 for record in rounded.rounds()]
    assert not torch.equal(rounded.state.model, models_of(experiment, problem)[-1])
    if name not in LOSE_THE_ZERO_SUM:
        assert max(sums) < 1e-5
