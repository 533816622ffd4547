"""The options of the program `proxskip-server`, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.learning.data import ENVIRONMENT_VARIABLE

ExperimentName = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="a shipped experiment or a YAML file")]
ExperimentOrResume = Annotated[
    str | None, typer.Argument(metavar="EXPERIMENT", help="a shipped experiment or a YAML file; not with --resume")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a key, such as algorithm.density=0.1")
]
Output = Annotated[Path | None, typer.Option(metavar="DIR", help="where results go; a folder in runs/ by default")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help=f"folder of data sets; else ${ENVIRONMENT_VARIABLE}, else downloads")
]
Device = Annotated[str, typer.Option(help="where clients compute: auto (a GPU if there is one), cpu, cuda:0, mps")]
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
    bool, typer.Option("--paper-bits", help="count 32 bit a nonzero value, as the paper does, and not what is sent")
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
    int | None, typer.Option(min=1, help="a round needs so many; all but who is refused by default")
]
DeadlineSeconds = Annotated[
    float | None, typer.Option(min=0.1, help="a round waits no longer than this; an hour by default")
]
EvictAfter = Annotated[
    int | None,
    typer.Option(min=1, metavar="ROUNDS", help="give up a client that was away for so long; never by default"),
]
LargestNorm = Annotated[float, typer.Option(min=0.0, help="refuse an upload whose model has a larger norm")]
Robust = Annotated[
    int, typer.Option(min=0, metavar="CLIENTS", help="so many may lie: leave out those unlike the others, each round")
]
EvaluateOnClients = Annotated[bool, typer.Option("--evaluate-on-clients", help="ask clients for their loss each round")]
AuditEvery = Annotated[
    int | None, typer.Option(min=1, metavar="ROUNDS", help="ask clients for their control variates, and log the sum")
]
RunPaths = Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="folders of finished runs")]
Figure = Annotated[Path, typer.Option(metavar="FILE", help="where the figure goes")]
LearningRates = Annotated[str, typer.Option(metavar="LOW:HIGH", help="from where to where step sizes are drawn")]
Periods = Annotated[str, typer.Option(metavar="LOW:HIGH", help="from where to where mean numbers of local steps are")]
PeriodsTried = Annotated[
    int, typer.Option(min=1, help="numbers of local steps that each algorithm is tried with, at four step sizes each")
]
L1Strengths = Annotated[str, typer.Option(metavar="LOW:HIGH", help="from where to where an l1_strength is")]
LocalSteps = Annotated[int, typer.Option(min=1, help="local steps of a trial; its rounds are these over its period")]
ReachFirst = Annotated[
    list[float] | None,
    typer.Option(metavar="VALUE", help="take the fewest bits to the highest of these scores, not the best score"),
]
SearchSeed = Annotated[int, typer.Option("--search-seed", min=0, help="what the points are drawn with")]
Algorithms = Annotated[list[str] | None, typer.Argument(metavar="[ALGORITHM]...", help="all, if none is named")]
StudyName = Annotated[str, typer.Argument(metavar="NAME", help="a study of the paper's results, or all")]
AnyCode = Annotated[
    bool, typer.Option("--any-code", help="take runs as they are that another version of the code has made")
]
Quick = Annotated[bool, typer.Option("--quick", help="short runs with one seed")]
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


def with_clients(settings: list[str] | None, clients: int | None) -> list[str]:
    """Return the settings with what --clients says among them."""
    return [*(settings or []), *([f"clients={clients}"] if clients is not None else [])]
