"""The program `proxskip-client`: its options; client/join.py is what it does."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # as for the installed program: a file where we are started may bear a library's name

import os
from pathlib import Path
from typing import Annotated

import typer

from client.link import ways_to_server
from client.part import parts_of
from common.experiment.shipped import shipped_experiments
from common.program.start import run_program, version_option

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
keys_app = typer.Typer(no_args_is_help=True, help="This client's own key, which never leaves this machine.")
app.add_typer(keys_app, name="keys")

Target = Annotated[
    str,
    typer.Argument(
        metavar="BUNDLE", help="join bundle (with --partitions a folder of them); SERVER:PORT with --insecure"
    ),
]
Name = Annotated[str | None, typer.Option(help="this client's name; client-I, or the host's, by default")]
Partition = Annotated[str | None, typer.Option(metavar="I/N", help="which part of a public data set is ours, from 0")]
Partitions = Annotated[str | None, typer.Option(metavar="I-J/N", help="several clients in this process")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="the client's own data, a file or a folder; or the folder of data sets"),
]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda:0, mps")]
State = Annotated[Path | None, typer.Option(metavar="DIR", help="where the client's memory survives a restart")]
ForgetOnPowerLoss = Annotated[
    bool,
    typer.Option(
        "--forget-on-power-loss", help="do not wait for the disk: faster, but the control variate may be lost"
    ),
]
MemoryLimit = Annotated[int | None, typer.Option(min=1, metavar="MB", help="take no more memory than this")]
LocalDensity = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="what this device can hold in its local steps (hybrid only)")
]
LoaderWorkers = Annotated[
    int | None, typer.Option(min=0, help="processes that read examples ahead, at most; else as many as the server asks")
]
MaxUpload = Annotated[float | None, typer.Option(min=1.0, metavar="KBPS", help="upload at most so many kbit a second")]
AllowTask = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE:CLASS", help="a task of your own that the server may name; may be given again"),
]
AllowAlgorithm = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE:CLASS", help="an algorithm of your own, likewise; all others are refused"),
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads to compute with")]
Insecure = Annotated[bool, typer.Option("--insecure", help="SERVER:PORT without TLS and keys: for a trial only")]
Server = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="where the server is, if not where BUNDLE says")]
Key = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="our private key, if BUNDLE has none and it is not NAME.key beside it"),
]
BundleToCheck = Annotated[
    str | None,
    typer.Argument(metavar="[BUNDLE]", help="join bundle; SERVER:PORT with --insecure; without it this machine only"),
]
ExperimentToCheck = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="the experiment that the data is to fit, or the name of a shipped one",
        autocompletion=shipped_experiments,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="one JSON document in place of what people read")]
WithParent = Annotated[bool, typer.Option("--leave-with-parent", hidden=True)]
ClientName = Annotated[str, typer.Argument(metavar="NAME", help="by which the server is to know this client")]
Output = Annotated[Path, typer.Option(metavar="DIR", help="where NAME.key and NAME.csr go")]


@app.callback()
def proxskip_client(version: Annotated[bool, version_option("proxskip-client")] = False) -> None:
    """Take part in a federation with data that never leaves this machine."""


@app.command()
def join(
    target: Target,
    name: Name = None,
    server: Server = None,
    key: Key = None,
    partition: Partition = None,
    partitions: Partitions = None,
    data: Data = None,
    device: Device = "auto",
    state: State = None,
    forget_on_power_loss: ForgetOnPowerLoss = False,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    local_density: LocalDensity = None,
    loader_workers: LoaderWorkers = None,
    max_upload_kbps: MaxUpload = None,
    allow_task: AllowTask = None,
    allow_algorithm: AllowAlgorithm = None,
    insecure: Insecure = False,
    leave_with_parent: WithParent = False,
) -> None:
    """Join the federation that BUNDLE is for, and stay until told to leave (Ctrl-C, SIGTERM)."""
    parts = parts_of(partition, partitions)
    ways = ways_to_server(target, server, name, key, parts, insecure=insecure)
    typer.echo(f"preparing to join {target}", err=True)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # libraries start their threads when they are imported

    from client.join import Membership, prepare, serve  # they bring torch and flwr, which are slow to import
    from common.program.device import describe_device

    chosen_device = prepare(device, threads, memory_limit)
    typer.echo(f"computing on {describe_device(chosen_device)}", err=True)
    config: dict[str, bool | float | int | str] = {
        "data": str(data) if data else "",
        "device": str(chosen_device),
        "state": str(state) if state else "",
        "forget-on-power-loss": forget_on_power_loss,
        "local-density": "" if local_density is None else local_density,
        "loader-workers": "" if loader_workers is None else loader_workers,
        "allow-task": " ".join(allow_task or []),
        "allow-algorithm": " ".join(allow_algorithm or []),
    }
    membership = Membership(ways=ways, parts=parts, config=config, max_upload_kbps=max_upload_kbps)
    serve(membership, leave_with_parent=leave_with_parent)


@app.command()
def doctor(
    target: BundleToCheck = None,
    server: Server = None,
    key: Key = None,
    partition: Partition = None,
    data: Data = None,
    experiment: ExperimentToCheck = None,
    device: Device = "auto",
    state: State = None,
    memory_limit: MemoryLimit = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Check this machine before it joins: versions, device, disk, the bundle, the way to the server, its data.

    A problem is exit code 1; warnings alone are 0.
    """
    from client.doctor import CHECKS, ClientMachine
    from common.doctor.findings import examine, tell

    client = ClientMachine(
        folder=state or Path(),
        device=device,
        target=target,
        insecure=insecure,
        server=server,
        key=key,
        partition=partition,
        data=data,
        experiment=experiment,
        state=state,
        memory_limit_mb=memory_limit,
    )
    tell("proxskip-client", examine(client, CHECKS), as_json=as_json)


@keys_app.command()
def request(name: ClientName, output: Output = Path()) -> None:
    """Make this client's key here, and a request that the server's operator signs.

    NAME.key stays on this machine. NAME.csr is no secret.
    """
    from client.request import make_request

    made = make_request(name, output)
    typer.echo(f"{made.key_file} stays here: whoever has it is {name}")
    typer.echo(f"{made.request_file} goes to the server's operator, who says: proxskip-server keys sign {name}.csr")
    typer.echo(f"the operator must see this fingerprint: {made.fingerprint}")
    join_command = f"proxskip-client join {name}.join --key {made.key_file} --state DIR"
    typer.echo(f"then here: {join_command}, with --data PATH (its own data) or --partition I/N")


def main() -> None:
    """Run the program, and end at once: the interpreter's own end is aborted where a thread still computes."""
    try:
        run_program(app)
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else bool(end.code))


if __name__ == "__main__":
    main()
