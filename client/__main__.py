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
from client.node import Link, ResidentNode
from client.round import Part, Participant
from common.device import choose_device
from common.errors import UserError
from common.program import run_program
from common.wire import unpack_run

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

GOODBYE_SECONDS = 5.0

Server = Annotated[str, typer.Argument(metavar="SERVER:PORT", help="where the server listens")]
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
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads to compute with")]
Insecure = Annotated[bool, typer.Option("--insecure", help="no TLS: for loopback and trusted networks")]
Certificate = Annotated[Path | None, typer.Option(metavar="FILE", help="of the authority that signed the server's")]
Key = Annotated[Path | None, typer.Option(metavar="FILE", help="this client's private key")]
WithParent = Annotated[bool, typer.Option("--leave-with-parent", hidden=True)]


@app.callback()
def proxskip_client() -> None:
    """Take part in a federation with data that never leaves this machine."""


@app.command()
def join(
    server: Server,
    name: Name = None,
    partition: Partition = None,
    partitions: Partitions = None,
    data: Data = None,
    device: Device = "auto",
    state: State = None,
    forget_on_power_loss: ForgetOnPowerLoss = False,
    threads: Threads = None,
    insecure: Insecure = False,
    certificate: Certificate = None,
    key: Key = None,
    leave_with_parent: WithParent = False,
) -> None:
    """Join the federation of the server at SERVER:PORT, and stay until told to leave (Ctrl-C, SIGTERM)."""
    link = Link.choose(server, insecure=insecure, certificate=certificate, key=key)
    choose_device(device)  # say now what is wrong with it, not when the server first asks
    if threads is not None:
        torch.set_num_threads(threads)
    parts = _parts(partition, partitions)
    if name is not None and len(parts) > 1:
        raise UserError("--name is for one client; those of --partitions are named client-I")
    shared: dict[str, bool | float | int | str] = {
        "data": str(data) if data else "",
        "device": device,
        "state": str(state) if state else "",
        "forget-on-power-loss": forget_on_power_loss,
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
        nodes.append(ResidentNode(link, make_app(_Resident(), say), config, say))
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
