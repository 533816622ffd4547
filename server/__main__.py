"""The program `proxskip-server`."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import torch
import typer
from rich.console import Console

from common.errors import DivergedError, UserError
from common.experiment import plugins
from common.experiment.experiment import Experiment
from common.experiment.files import load_experiment
from common.experiment.shipped import shipped_experiments
from common.learning.data import DataFolder
from common.learning.task import Problem, Task
from common.program.address import host_and_port
from common.program.device import choose_device
from common.program.start import run_program
from common.rounds.algorithm import Algorithm
from common.rounds.records import RoundRecord
from server.commands import options
from server.commands.keys import DEFAULT_PORT
from server.commands.keys import app as keys_app
from server.deploy.federation import Federation
from server.deploy.guard import Guard
from server.deploy.local import arguments_of_clients, local_clients
from server.keys.folder import Keys
from server.link.fleet import Fleet
from server.research.reproduce import ALL, reproduce, studies
from server.research.tuning import Search, Span, Trial, best_of, search, write_tuned
from server.runs.journal import Journal, JournalEntry
from server.runs.progress import live_view
from server.runs.recorder import Recorder
from server.runs.report import all_encoded, common_metric, comparison_table, curve, draw_comparison, require_figures
from server.runs.run_folder import RunFolder, next_free
from server.simulation.simulation import SIMULATION, Simulation
from strategies.flower.terms import Terms

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(keys_app, name="keys")
console = Console()
guard = Guard()
CPU = torch.device("cpu")
SECONDS_BETWEEN_ENTRIES = 10.0  # in the journal of a simulation, which can do some rounds again
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@app.callback()
def proxskip_server() -> None:
    """Accelerated sparse-to-sparse federated learning."""


@app.command("simulate")
def simulate_command(
    experiment: options.ExperimentOrResume = None,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
    device: options.Device = "auto",
    resume: options.Resume = None,
) -> None:
    """Run an experiment with all clients in this process.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file. After a crash, --resume RUN_DIR
    goes on where the run was, or some seconds before, and ends as if nothing had happened.
    """
    begun, chosen = _begin(experiment, settings or [], resume, output)
    clients_device = choose_device(device)
    problem = chosen.load(DataFolder.choose(data), clients_device)
    simulation = Simulation(chosen, problem, clients_device)
    folder = begun or RunFolder.create(output, chosen, problem.data_name)
    guard.announce(folder.path)
    with folder.locked():
        if begun:
            entry = _last_entry(folder, chosen, simulated=True)
            if entry:
                simulation.go_on_from(entry.checkpoint, entry.controls)
            else:
                folder.go_back_to(None)
        else:
            entry = None
        _run(simulation, folder, entry)
    _conclude(problem, folder)


@app.command()
def compare(
    experiment: options.ExperimentName,
    algorithms: options.Algorithms = None,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
    device: options.Device = "auto",
    reach: options.Reach = None,
    paper_bits: options.PaperBits = False,
) -> None:
    """Simulate an experiment with several algorithms, all if none is named, and draw the metric against uploaded bits.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file.
    """
    require_figures()
    names = algorithms or plugins.available(Algorithm.plugin_package)
    chosen = {name: load_experiment(experiment, [*(settings or []), f"algorithm.name={name}"]) for name in names}
    folder, clients_device = DataFolder.choose(data), choose_device(device)
    first = chosen[names[0]]
    problem = first.load(folder, clients_device)
    parent = output or next_free(Path("runs"), f"{first.name}-comparison")
    runs = {}
    for name, one in chosen.items():
        same = (one.task, one.clients, one.seed) == (first.task, first.clients, first.seed)
        own_problem = problem if same else one.load(folder, clients_device)
        runs[name] = _run_as_far_as_it_goes(Simulation(one, own_problem, clients_device), parent / name)
    runs = {name: records for name, records in runs.items() if curve(records, problem.metric)}
    if not runs:
        raise UserError("no algorithm got as far as an evaluation: there is nothing to compare")
    as_sent = all_encoded(runs) and not paper_bits
    console.print(comparison_table(runs, problem.metric, reach or [], as_sent=as_sent))
    figure, title = parent / "comparison.png", f"{problem.data_name}, {problem.clients} clients"
    draw_comparison(runs, problem.metric, as_sent=as_sent, title=title, path=figure)
    _say(f"figure: {figure}\nresults: {parent}")


@app.command()
def run(
    experiment: options.ExperimentOrResume = None,
    keys: options.KeysOption = None,
    listen: options.Listen = None,
    clients: options.Clients = None,
    insecure: options.Insecure = False,
    trust_network: options.TrustNetwork = False,
    minimum_clients: options.MinimumClients = None,
    deadline_seconds: options.DeadlineSeconds = None,
    evict_after: options.EvictAfter = None,
    largest_norm: options.LargestNorm = math.inf,
    evaluate_on_clients: options.EvaluateOnClients = False,
    audit_every: options.AuditEvery = None,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
    resume: options.Resume = None,
    go_on: options.GoOn = False,
) -> None:
    """Wait for the clients of an experiment, run it with them, and write the results.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file. After a crash, --resume RUN_DIR
    goes on where the run was, and ends as if nothing had happened.
    """
    if go_on:
        if output is None or resume is not None:
            raise UserError("--go-on goes on with the run in --output DIR: say which, and leave out --resume")
        if RunFolder(output).is_begun:
            resume, output = output, None
    begun, chosen = _begin(experiment, _with_clients(settings, clients), resume, output)
    address, opened = _door(keys, listen, insecure, trust_network)
    terms = Terms(
        minimum_clients=minimum_clients,
        deadline_seconds=deadline_seconds,
        evict_after_rounds=evict_after,
        largest_norm=largest_norm,
        evaluate_on_clients=evaluate_on_clients,
        audit_every_rounds=audit_every,
    )
    problem = chosen.load_for_server(data, CPU)
    with Fleet(address, opened, _say) as fleet:
        folder = begun or RunFolder.create(output, chosen, problem.data_name)
        _say(f"listening on {fleet.address}")
        _federate(chosen, problem, folder, terms, fleet)


@app.command()
def local(
    experiment: options.ExperimentOrResume = None,
    clients: options.Clients = None,
    evaluate_on_clients: options.EvaluateOnClients = False,
    audit_every: options.AuditEvery = None,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
    resume: options.Resume = None,
) -> None:
    """Run a whole federation on this machine: the server, and a process for every client, over gRPC.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file. After a crash, --resume RUN_DIR
    goes on where the run was, and ends as if nothing had happened.
    """
    begun, chosen = _begin(experiment, _with_clients(settings, clients), resume, output)
    problem = chosen.load_for_server(data, CPU)
    arguments = arguments_of_clients(chosen, data)
    with Fleet("127.0.0.1:0") as fleet:
        folder = begun or RunFolder.create(output, chosen, problem.data_name)
        own = folder.path / "clients"
        _say(f"starting {chosen.clients} client processes; their logs and their memory are in {own}")
        with local_clients(fleet.address, arguments, folder=own, say=_say):
            terms = Terms(evaluate_on_clients=evaluate_on_clients, audit_every_rounds=audit_every)
            _federate(chosen, problem, folder, terms, fleet)


@app.command()
def report(
    runs: options.RunPaths, output: options.Figure = Path("comparison.png"), paper_bits: options.PaperBits = False
) -> None:
    """Put finished runs side by side: a table, and a figure of the metric against uploaded bytes."""
    require_figures()
    records = {path.name: RunFolder(path).rounds() for path in runs}
    metric = common_metric(records)
    as_sent = all_encoded(records) and not paper_bits
    console.print(comparison_table(records, metric, as_sent=as_sent))
    draw_comparison(records, metric, as_sent=as_sent, title=", ".join(records), path=output)
    _say(f"figure: {output}")


@app.command()
def tune(
    experiment: options.ExperimentName,
    algorithms: options.Algorithms = None,
    learning_rates: options.LearningRates = "1e-3:1",
    periods: options.Periods = "4:128",
    l1_strengths: options.L1Strengths = "1e-4:1e-1",
    periods_tried: options.PeriodsTried = 3,
    local_steps: options.LocalSteps = 4000,
    reach: options.ReachFirst = None,
    seed: options.SearchSeed = 0,
    settings: options.Settings = None,
    output: options.Output = None,
    data: options.Data = None,
) -> None:
    """Search step size and local steps of several algorithms at random, with the same points for all.

    EXPERIMENT is a shipped one (see `proxskip-server list`) or the path of a YAML file. A search that was interrupted
    goes on where it was when it is called again with the same --output.
    """
    names = tuple(algorithms or plugins.available(Algorithm.plugin_package))
    what = Search(
        experiment=experiment,
        settings=tuple(settings or []),
        algorithms=names,
        learning_rates=Span.read("--learning-rates", learning_rates),
        periods=Span.read("--periods", periods),
        l1_strengths=Span.read("--l1-strengths", l1_strengths),
        groups=periods_tried,
        local_steps=local_steps,
        seed=seed,
    )
    folder = output or Path("runs") / f"{load_experiment(experiment, settings or []).name}-tuning"
    found: list[Trial] = []
    for trial in search(what, data, folder):
        found.append(trial)
        score = "diverged" if trial.diverged else f"{trial.score:.4f}"
        of = len(names) * what.trials
        _say(f"{len(found)}/{of}: {trial.algorithm}, {trial.described}: {score}")
    best = {name: best_of(found, name, reach or []) for name in names}
    for name, chosen in best.items():
        _say(f"{name}: " + (f"{chosen.score:.4f} with {chosen.described}" if chosen else "diverged everywhere"))
    _say(f"settings: {write_tuned(what, best, reach or [], folder)}")


@app.command("reproduce")
def reproduce_command(
    name: options.StudyName,
    quick: options.Quick = False,
    output: options.Output = None,
    data: options.Data = None,
) -> None:
    """Run what a table or figure of the paper needs, and write it with the paper's numbers beside ours.

    NAME is one of the studies (see `proxskip-server list`), or `all`. Runs that are done are kept in the output folder,
    so that the same command goes on where it was interrupted.
    """
    require_figures()
    folder = output or Path("runs") / ("reproduced-quick" if quick else "reproduced")
    reproduce(studies(name), quick=quick, data=data, folder=folder, say=_say)


@app.command("list")
def list_command() -> None:
    """List the experiments, algorithms, tasks and studies that are at hand."""
    _say(f"experiments: {', '.join(shipped_experiments())}")
    _say(f"algorithms: {', '.join(plugins.available(Algorithm.plugin_package))}")
    _say(f"tasks: {', '.join(plugins.available(Task.plugin_package))}")
    _say(f"studies: {', '.join(studies(ALL))}")


def _begin(
    experiment: str | None, settings: list[str], resume: Path | None, output: Path | None
) -> tuple[RunFolder | None, Experiment]:
    """Return the folder of the run to go on with, if there is one, and the experiment."""
    if guard.interrupted is not None:
        experiment, settings, resume, output = None, [], guard.interrupted, None
    if resume is None:
        if experiment is None:
            raise UserError("say which EXPERIMENT to run, or --resume RUN_DIR to go on with a run")
        return None, load_experiment(experiment, settings)
    if output is not None:
        raise UserError("--resume goes on in the folder of the run; --output is for a new one")
    folder, chosen = RunFolder.reopen(resume)
    if load_experiment(experiment or str(folder.experiment_file), settings) != chosen:
        raise UserError(f"--resume {resume}: that run is another experiment; leave out EXPERIMENT, --set and --clients")
    if folder.is_finished:
        _say(f"{resume} is finished, after {len(folder.rounds())} rounds")
        raise typer.Exit
    return folder, chosen


def _with_clients(settings: list[str] | None, clients: int | None) -> list[str]:
    return [*(settings or []), *([f"clients={clients}"] if clients is not None else [])]


def _door(keys: Path | None, listen: str | None, insecure: bool, trust_network: bool) -> tuple[str, Keys | None]:
    """Return where to listen, and the keys of who may join; none where the user wants to go without, and may."""
    if insecure:
        if keys is not None:
            raise UserError("--insecure goes without --keys; say one or the other")
        address = listen or f"127.0.0.1:{DEFAULT_PORT}"
        if host_and_port(address)[0] not in LOOPBACK and not trust_network:
            raise UserError(
                f"--insecure --listen {listen}: without TLS only loopback is safe (127.0.0.1:PORT); "
                "give --keys, or say --trust-network"
            )
        _say("warning: --insecure: whoever can reach this port can join, and read and change everything")
        return address, None
    if keys is None:
        raise UserError(
            "give --keys DIR (made by `proxskip-server keys init DIR --host HOST`), "
            "or --insecure for a trial on this machine"
        )
    opened = Keys.open(keys)
    if not opened.clients():
        raise UserError(f"--keys {keys}: nobody could join; add clients: proxskip-server keys add NAME --keys {keys}")
    host, port = host_and_port(opened.address)
    everywhere = "[::]" if ":" in host else "0.0.0.0"  # noqa: S104 - TLS and keys guard it
    return listen or f"{everywhere}:{port}", opened


def _federate(experiment: Experiment, problem: Problem, folder: RunFolder, terms: Terms, fleet: Fleet) -> None:
    title = plugins.name_of(Algorithm.plugin_package, type(experiment.algorithm))
    guard.announce(folder.path)
    with folder.locked(), live_view(console, title=title, rounds=experiment.rounds, metric=problem.metric) as view:
        entry = _last_entry(folder, experiment, simulated=False)
        recorder = Recorder(folder, experiment, entry, show=view.show, say=_say)
        federation = Federation(experiment, problem, terms, recorder, entry)
        try:
            federation.run_on_fleet(fleet)
        except (KeyboardInterrupt, SystemExit):
            _say(f"stopped; the same command with --resume {folder.path} in place of the experiment goes on")
            raise
    _conclude(problem, folder)


def _last_entry(folder: RunFolder, experiment: Experiment, *, simulated: bool) -> JournalEntry | None:
    entry = Journal(folder.path, experiment).read()
    if entry is not None:
        if (entry.run == SIMULATION) != simulated:
            command = "simulate" if entry.run == SIMULATION else "run or local"
            raise UserError(f"--resume {folder.path}: that run can only go on with {command}")
        _say(f"going on after round {entry.checkpoint.round} of {experiment.rounds}")
    return entry


def _conclude(problem: Problem, folder: RunFolder) -> None:
    records = folder.rounds()
    last = records[-1]
    up, down = (
        sum((getattr(record, f"payload_bytes_{way}") or 0) / record.clients for record in records)
        for way in ("up", "down")
    )
    how_much = f"{last.paper_bits_up / 1e6:.3f} Mbit up a client by the paper's count"
    if up:
        how_much = f"{up / 1e3:.1f} kB up and {down / 1e3:.1f} kB down a client"
    score = last.metrics.get(problem.metric)
    measured = "not measured" if score is None else f"{score:.4f}"
    _say(f"{problem.data_name}: {problem.metric} {measured} after {last.round} rounds and {how_much}")
    _say(f"results: {folder.path}")


def _run(simulation: Simulation, folder: RunFolder, entry: JournalEntry | None = None) -> None:
    title = plugins.name_of(Algorithm.plugin_package, type(simulation.algorithm))
    rounds, metric = simulation.experiment.rounds, simulation.problem.metric
    with live_view(console, title=title, rounds=rounds, metric=metric) as view:
        recorder = Recorder(
            folder,
            simulation.experiment,
            entry,
            show=view.show,
            say=_say,
            run=SIMULATION,
            seconds_between_entries=SECONDS_BETWEEN_ENTRIES,
        )
        for record in simulation.rounds():
            recorder.on_round(record, simulation.checkpoint, simulation.controls)
    recorder.finish(simulation.kept())


def _run_as_far_as_it_goes(simulation: Simulation, path: Path) -> list[RoundRecord]:
    """Run one side of a comparison; that a method diverges is a result, not the end of the comparison."""
    folder = RunFolder.create(path, simulation.experiment, simulation.problem.data_name)
    try:
        _run(simulation, folder)
    except DivergedError as error:
        _say(f"{path.name}: {error}")
    return folder.rounds()


def _say(text: str) -> None:
    """Print a line as it is, whatever brackets a path may have."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _leave(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def main() -> None:
    """Run the program."""
    guard.stand(_say)
    signal.signal(signal.SIGTERM, _leave)  # as if it had been Ctrl-C: clients are let go, files are closed
    run_program(app)


if __name__ == "__main__":
    main()
