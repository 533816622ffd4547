"""The program `proxskip-client`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from flwr.app import Context

from client.app import default_name, make_app, participant_of
from client.limits import limit_memory
from client.node import Link, ResidentNode
from client.round import Part, Participant
from common.errors import UserError
from common.messages.messages import unpack_run
from common.program.bundle import Bundle
from common.program.device import choose_device
from common.program.start import run_program

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

GOODBYE_SECONDS = 5.0

Target = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="join bundle, from the server's operator; SERVER:PORT with --insecure")
]
Name = Annotated[str | None, typer.Option(help="this client's name; client-I, or the host's, by default")]
Partition = Annotated[str | None, typer.Option(metavar="I/N", help="which part of a public data set is ours, from 0")]
Partitions = Annotated[str | None, typer.Option(metavar="I-J/N", help="several clients in this process")]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="folder of data sets")]
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
MaxUpload = Annotated[float | None, typer.Option(min=1.0, metavar="KBPS", help="upload at most so many kbit a second")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads to compute with")]
Insecure = Annotated[bool, typer.Option("--insecure", help="SERVER:PORT without TLS and keys: for a trial only")]
Server = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="where the server is, if not where BUNDLE says")]
WithParent = Annotated[bool, typer.Option("--leave-with-parent", hidden=True)]


@app.callback()
def proxskip_client() -> None:
    """Take part in a federation with data that never leaves this machine."""


@app.command()
def join(
    target: Target,
    name: Name = None,
    server: Server = None,
    partition: Partition = None,
    partitions: Partitions = None,
    data: Data = None,
    device: Device = "auto",
    state: State = None,
    forget_on_power_loss: ForgetOnPowerLoss = False,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    local_density: LocalDensity = None,
    max_upload_kbps: MaxUpload = None,
    insecure: Insecure = False,
    leave_with_parent: WithParent = False,
) -> None:
    """Join the federation that BUNDLE is for, and stay until told to leave (Ctrl-C, SIGTERM)."""
    parts = _parts(partition, partitions)
    link, name = _link(target, insecure, server, name, parts)
    choose_device(device)  # say now what is wrong with it, not when the server first asks
    if threads is not None:
        torch.set_num_threads(threads)
    if memory_limit is not None:
        limit_memory(memory_limit)
    shared: dict[str, bool | float | int | str] = {
        "data": str(data) if data else "",
        "device": device,
        "state": str(state) if state else "",
        "forget-on-power-loss": forget_on_power_loss,
        "local-density": "" if local_density is None else local_density,
    }
    nodes = []
    for part in parts:
        own_name = name or default_name(part)
        config: dict[str, bool | float | int | str] = {
            **shared,
            "name": own_name,
            "partition": f"{part.index}/{part.of}" if part else "",
        }
        say = _say_as(own_name)
        nodes.append(ResidentNode(link, make_app(_Resident(), say), config, say, max_upload_kbps))
    if leave_with_parent:
        threading.Thread(target=_leave_with_parent, daemon=True).start()
    _serve(nodes)


class _Resident:
    """The participant of the current run, kept between messages, and while the server is restarted."""

    def __init__(self) -> None:
        self._run_id: int | None = None
        self._run = ""
        self._participant: Participant | None = None

    def __call__(self, context: Context) -> Participant:
        if self._participant is None or self._run_id != context.run_id:
            run = unpack_run(context.run_config, context.run_id).name
            if self._participant is None or self._run != run:
                self._participant = participant_of(context)
            self._run, self._run_id = run, context.run_id
        return self._participant


def _link(
    target: str, insecure: bool, server: str | None, name: str | None, parts: list[Part | None]
) -> tuple[Link, str | None]:
    """Return the way to the server, and the client's name as far as it is given."""
    if len(parts) > 1 and (name is not None or not insecure):
        raise UserError("--partitions makes several clients, named client-I; a name or a bundle is for one of them")
    if insecure:
        if server is not None:
            raise UserError("--server is for a bundle; with --insecure say SERVER:PORT in its place")
        sys.stderr.write("warning: --insecure: whoever is on the way can read and change everything\n")
        return Link.in_the_clear(target), name
    if not Path(target).is_file():
        raise UserError(
            f"there is no join bundle {target}; the server's operator makes one with `proxskip-server keys add NAME` "
            "(or, for a trial on this machine: SERVER:PORT --insecure)"
        )
    bundle = Bundle.read(Path(target))
    if name not in (None, bundle.client):
        raise UserError(f"this bundle is for {bundle.client}: it cannot join as {name}")
    return Link.of_bundle(bundle, server), bundle.client


def _parts(partition: str | None, partitions: str | None) -> list[Part | None]:
    if partition is not None and partitions is not None:
        raise UserError("say --partition I/N for one client or --partitions I-J/N for several, not both")
    if partitions is None:
        return [Part.read(partition) if partition is not None else None]
    first_last, _, of = partitions.partition("/")
    first, _, last = first_last.partition("-")
    if not (first.isdecimal() and last.isdecimal() and of.isdecimal() and int(first) <= int(last)):
        raise UserError(f"--partitions {partitions}: expected I-J/N, such as 0-9/100")
    return [Part(index, int(of)) for index in range(int(first), int(last) + 1)]


def _serve(nodes: list[ResidentNode]) -> None:
    """Run the nodes, each in a thread of its own, until a signal or until the first of them gives up."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    failures: list[UserError] = []
    threads = [threading.Thread(target=_run, args=(node, over, failures), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    while not over.wait(1.0):  # in turns, so that signals are heard on every platform
        pass
    for node in nodes:
        node.stop()
    end = time.monotonic() + GOODBYE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if failures:
        raise failures[0]


def _run(node: ResidentNode, over: threading.Event, failures: list[UserError]) -> None:
    try:
        node.run()
    except UserError as error:
        failures.append(error)
    except Exception as error:  # so that who started us hears of it
        failures.append(UserError(f"something went wrong here: {error!r}"))
    finally:
        over.set()


def _leave_with_parent() -> None:
    """Leave when the process that started us is gone: then our standard input ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _say_as(name: str) -> Callable[[str], None]:
    def say(text: str) -> None:
        sys.stderr.write(f"{name}: {text}\n")
        sys.stderr.flush()

    return say


def main() -> None:
    """Run the program."""
    run_program(app)


if __name__ == "__main__":
    main()
