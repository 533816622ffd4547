"""The options of the program `proxskip-server`, each described once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import UserError
from common.experiment.plugins import available
from common.experiment.shipped import shipped_experiments
from common.learning.data import ENVIRONMENT_VARIABLE
from server.research.studies import names_of
from server.tracking.tracker import TOOLS
from strategies.flower.terms import Terms


class ExportFormat(StrEnum):
    """What a model can be exported to."""

    torch = "torch"
    onnx = "onnx"
    sparse = "sparse"


def _algorithms() -> list[str]:
    return available("strategies")


def _trackers() -> list[str]:
    return available(TOOLS)


def _studies() -> list[str]:
    return [*names_of(), "all"]


ExperimentName = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT", help="a shipped experiment or a YAML file", autocompletion=shipped_experiments
    ),
]
ExperimentOrResume = Annotated[
    str | None,
    typer.Argument(
        metavar="EXPERIMENT",
        help="a shipped experiment or a YAML file; not with --resume",
        autocompletion=shipped_experiments,
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a key, such as algorithm.density=0.1")
]
Output = Annotated[Path | None, typer.Option(metavar="DIR", help="where results go; a folder in runs/ by default")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help=f"folder of data sets; else ${ENVIRONMENT_VARIABLE}, else downloads")
]
Device = Annotated[str, typer.Option(help="where clients compute: auto (a GPU if there is one), cpu, cuda:0, mps")]
Devices = Annotated[
    str,
    typer.Option(
        metavar="LIST", help="where clients compute, in turns: auto (all GPUs; else the CPU), cpu, cuda:0,cuda:1"
    ),
]
Reach = Annotated[
    list[float] | None, typer.Option(metavar="VALUE", help="show what it cost to reach this value of the metric")
]
Resume = Annotated[
    Path | None, typer.Option(metavar="RUN_DIR", help="go on with a run that was interrupted, as it was begun")
]
GoOn = Annotated[
    bool, typer.Option("--go-on", help="go on with the run in --output, if one was begun there: for services")
]
PaperBits = Annotated[
    bool, typer.Option("--paper-bits", help="count 32 bit per nonzero value, as the paper does, and not what is sent")
]
Clients = Annotated[int | None, typer.Option(min=1, help="how many clients; as the experiment says by default")]
Listen = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="all addresses, at the keys' port; 127.0.0.1:9092 with --insecure"),
]
KeysOption = Annotated[
    Path | None, typer.Option("--keys", metavar="DIR", help="the federation's keys, as `keys init` makes them")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="no TLS, no keys; on loopback only, unless --trust-network")]
TrustNetwork = Annotated[
    bool, typer.Option("--trust-network", help="be --insecure on other networks than loopback too")
]
MinimumClients = Annotated[
    int | None,
    typer.Option(
        min=1, help="a round needs so many; the first waits a minute for all. All but who is refused by default"
    ),
]
DeadlineSeconds = Annotated[
    float | None, typer.Option(min=0.1, help="a round waits no longer than this; an hour by default")
]
EvictAfter = Annotated[
    str | None,
    typer.Option(
        metavar="ROUNDS|TIME",
        help="give up a client that was away for so long, such as 5, 90s, 10m, 2h; never by default",
    ),
]
LargestNorm = Annotated[float, typer.Option(min=0.0, help="refuse an upload whose model has a larger norm")]
Robust = Annotated[
    int, typer.Option(min=0, metavar="CLIENTS", help="so many may lie: leave out those unlike the others, each round")
]
EvaluateOnClients = Annotated[bool, typer.Option("--evaluate-on-clients", help="ask clients for their loss each round")]
AuditEvery = Annotated[
    int | None, typer.Option(min=1, metavar="ROUNDS", help="ask clients for their control variates, and log the sum")
]
RunsFolder = Annotated[Path, typer.Argument(metavar="[RUNS]", help="a folder of runs, or one run; runs/ by default")]
WatchListen = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="127.0.0.1:8092 by default, or the next port that is free"),
]
Watch = Annotated[bool, typer.Option("--watch", help="show the run in a browser, for as long as this command lasts")]
WithParent = Annotated[bool, typer.Option("--leave-with-parent", hidden=True)]
RunPaths = Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="folders of finished runs")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the folder of a finished run")]
ToPredict = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="a table or a folder of images or tables; or the folder of public data sets"),
]
PredictionsFile = Annotated[Path | None, typer.Option(metavar="FILE", help="a CSV file for all predictions")]
ExportTo = Annotated[ExportFormat, typer.Option("--to", help="what the file is for", show_default=False)]
ExportFile = Annotated[Path | None, typer.Option(metavar="FILE", help="where it goes; in the run's folder by default")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOOL",
        help="tell tensorboard, mlflow or wandb of every round; may be given again",
        autocompletion=_trackers,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="one JSON document in place of what people read")]
ReportFile = Annotated[
    Path, typer.Option(metavar="FILE", help="where the figure goes, or the page if it ends with .html")
]
LearningRates = Annotated[str, typer.Option(metavar="LOW:HIGH", help="from where to where step sizes are drawn")]
Periods = Annotated[str, typer.Option(metavar="LOW:HIGH", help="from where to where mean numbers of local steps are")]
PeriodsTried = Annotated[
    int, typer.Option(min=1, help="numbers of local steps that each algorithm is tried with, at four step sizes each")
]
SearchedOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=LOW:HIGH",
        help="from where to where an option is that only some algorithms have, such as l1_strength=1:100",
    ),
]
LocalSteps = Annotated[int, typer.Option(min=1, help="local steps of a trial; its rounds are these over its period")]
ReachFirst = Annotated[
    list[float] | None,
    typer.Option(metavar="VALUE", help="take the fewest bits to the highest of these scores, not the best score"),
]
SearchSeed = Annotated[int, typer.Option("--search-seed", min=0, help="what the points are drawn with")]
Algorithms = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ALGORITHM]...", help="all, if none is named", autocompletion=_algorithms),
]
StudyName = Annotated[
    str, typer.Argument(metavar="NAME", help="a study of the paper's results, or all", autocompletion=_studies)
]
AnyCode = Annotated[
    bool, typer.Option("--any-code", help="take runs as they are that another version of the code has made")
]
Quick = Annotated[bool, typer.Option("--quick", help="short runs with one seed")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="the folder of runs")]
KeysFolder = Annotated[Path, typer.Argument(metavar="DIR", help="where the keys go")]
InKeys = Annotated[Path, typer.Option("--keys", metavar="DIR", help="the folder that `keys init` made")]
Hosts = Annotated[
    list[str], typer.Option("--host", metavar="NAME_OR_IP", help="how clients reach the server; may be given again")
]
Port = Annotated[int, typer.Option(min=1, max=65535, help="the port at which clients reach the server")]
ClientNames = Annotated[list[str], typer.Argument(metavar="CLIENT_NAME...")]
Requests = Annotated[
    list[Path], typer.Argument(metavar="NAME.csr...", help="what `proxskip-client keys request NAME` made")
]

# What `run` and `local` have in common: one option for each of the Terms but --evict-after, which may be one of two.
TERMS: dict[str, tuple[Any, Any]] = {
    "minimum_clients": (MinimumClients, Terms.minimum_clients),
    "deadline_seconds": (DeadlineSeconds, Terms.deadline_seconds),
    "evict_after": (EvictAfter, None),
    "largest_norm": (LargestNorm, Terms.largest_norm),
    "robust": (Robust, Terms.robust),
    "evaluate_on_clients": (EvaluateOnClients, Terms.evaluate_on_clients),
    "audit_every": (AuditEvery, Terms.audit_every_rounds),
}
SECONDS = {"s": 1, "m": 60, "h": 3600}


def with_terms(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of TERMS in place of its parameter `terms`."""
    signature = inspect.signature(command, eval_str=True)
    own = [one for name, one in signature.parameters.items() if name != "terms"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, keyword, default=value, annotation=kind) for name, (kind, value) in TERMS.items()]

    @functools.wraps(command)
    def with_options(**given: Any) -> None:  # noqa: ANN401 - as typer gives them
        terms = _terms(**{name: given.pop(name) for name in TERMS})
        command(**given, terms=terms)

    parameters = [*(one.replace(kind=keyword) for one in own), *added]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options


def _terms(*, evict_after: str | None, audit_every: int | None, **others: Any) -> Terms:  # noqa: ANN401 - of Terms
    return Terms(audit_every_rounds=audit_every, **_absence(evict_after), **others)


def _absence(text: str | None) -> dict[str, Any]:
    """Return after which absence a client is given up: so many rounds, or so much time."""
    if text is None:
        return {}
    number, unit = (text[:-1], text[-1]) if text[-1:] in SECONDS else (text, "")
    if not number.isdecimal() or not int(number):
        raise UserError(
            f"--evict-after {text}: expected a number of rounds, such as 5, or a time, such as 90s, 10m or 2h"
        )
    return {"evict_after_seconds": float(int(number) * SECONDS[unit])} if unit else {"evict_after_rounds": int(number)}


def with_clients(settings: list[str] | None, clients: int | None) -> list[str]:
    """Return the settings with what --clients says among them."""
    return [*(settings or []), *([f"clients={clients}"] if clients is not None else [])]
