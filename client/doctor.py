"""Checks of a machine that is to be a client; to add one, write a function and put it into CHECKS."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from client.handshake import SECONDS, what_is_wrong
from client.link import Link, Way, ways_to_server
from client.part import default_name, parts_of
from common.doctor import machine
from common.doctor.findings import Check, Finding, ok, problem, warning
from common.doctor.machine import Machine
from common.doctor.secrets import expiry, readable_by_others, worst
from common.errors import PublicError, UserError
from common.program.address import host_and_port
from common.storage.lock import is_locked
from common.storage.replace import OTHERS

NEW_BUNDLE = "ask the server's operator for a new bundle"


@dataclass(frozen=True, kw_only=True)
class ClientMachine(Machine):
    """What there is to check; `folder` is the state folder, or where we are."""

    target: str | None  # the join bundle; or SERVER:PORT, insecure
    insecure: bool
    server: str | None
    key: Path | None
    partition: str | None
    data: Path | None
    experiment: str | None
    state: Path | None
    memory_limit_mb: int | None

    @cached_property
    def way(self) -> Way:
        """Return the way to the server, and our name."""
        assert self.target is not None
        return ways_to_server(self.target, self.server, None, self.key, [None], insecure=self.insecure)[0]

    @property
    def link(self) -> Link | None:
        """Return the way to the server, where the bundle says one."""
        try:
            return self.way[0] if self.target is not None else None
        except UserError:  # which is a finding of its own
            return None


def bundle(client: ClientMachine) -> Finding | None:
    """Find whether the join bundle can be read, and is for its owner alone."""
    if client.target is None:
        return None
    link, name = client.way
    if client.insecure:
        return warning("no bundle: --insecure", "for a trial only; else join with a bundle")
    own_key = client.key or Path(client.target).with_name(f"{name}.key")
    secret = own_key if own_key.exists() else Path(client.target)
    if readable_by_others([secret]):
        return warning(f"others may read {secret}: whoever has it is {name}", f"chmod 600 {secret}")
    return ok(f"{name}, of the server at {link.address}")


def certificate(client: ClientMachine) -> Finding | None:
    """Find whether the certificates in the bundle are still good."""
    link = client.link
    if link is None or link.certificate is None or link.root_certificates is None:
        return None
    return worst(
        [
            expiry(link.certificate, "this client's certificate", NEW_BUNDLE),
            expiry(link.root_certificates, "the federation's authority", NEW_BUNDLE),
        ]
    )


def server(client: ClientMachine) -> Finding | None:
    """Find whether the server can be reached, and is the one of the bundle."""
    if (link := client.link) is None:
        return None
    host, port = host_and_port(link.address)
    started = time.perf_counter()
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error)
        return problem(f"{link.address} cannot be reached: {why}", "is the server running, and no firewall between?")
    milliseconds = 1000 * (time.perf_counter() - started)
    if wrong := what_is_wrong(link):
        return problem(f"{link.address} answers, but {wrong}", "")
    how = "without TLS" if link.root_certificates is None else f"by TLS, as {link.host}, and takes this client"
    return ok(f"{link.address} answers in {milliseconds:.0f} ms {how}")


def data(client: ClientMachine) -> Finding | None:
    """Find whether the data fits the experiment, by what a client does when it is first asked."""
    if client.experiment is None:
        return warning(f"{client.data} was not looked at", "say --experiment FILE") if client.data else None
    from client.round import Participant, Station
    from common.experiment.files import load_experiment
    from common.program.device import choose_device

    experiment = load_experiment(client.experiment)
    (part,) = parts_of(client.partition, None)
    station = Station(
        name=client.way[1] if client.link else default_name(part),
        part=part,
        data=client.data,
        device=choose_device(client.device),
        state_folder=None,
    )
    try:
        participant = Participant.join(experiment, station, "doctor")
    except PublicError:  # about the options, not about what is in the data
        raise
    except UserError as error:
        return problem(str(error), "mend the data, or ask the server's operator for another schema")
    loss = participant.evaluate(participant.first_state()).loss
    weights = participant.like.model.numel()
    return ok(f"it fits {experiment.name}: a model of {weights} weights starts with a loss of {loss:.4g}")


def state(client: ClientMachine) -> Finding | None:
    """Find whether the state folder is ours, and for us alone."""
    folder = client.state
    if folder is None:
        return warning("no --state: what the client remembers is lost when it ends", "say --state DIR")
    if not folder.is_dir():
        return ok(f"{folder} is to be made")  # `disk speed` has written above it
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return problem(f"{folder} cannot be written to", "run the client as its owner, or name another folder")
    if taken := [file.stem for file in folder.glob("*.identity") if is_locked(file)]:
        return warning(f"a process is {', '.join(sorted(taken))} at this moment", "end it before you start another")
    if folder.stat().st_mode & OTHERS:
        return warning(f"others may look into {folder}", f"chmod 700 {folder}")
    return ok(f"{folder} is there, for its owner alone")


def memory_limit(client: ClientMachine) -> Finding | None:
    """Find whether the client may take what it has taken by now, with its libraries and its data."""
    if client.memory_limit_mb is None:
        return None
    from client.limits import MEGABYTE, data_bytes

    taken = data_bytes()
    if taken is None:
        return None
    taken_mb = taken / MEGABYTE
    found = f"{client.memory_limit_mb} MB, of which libraries and data take {taken_mb:.0f}"
    if client.memory_limit_mb < taken_mb:
        return problem(found, f"say --memory-limit {2 * taken_mb:.0f}, or leave it out")
    return ok(found)


CHECKS: tuple[Check[ClientMachine], ...] = (
    *machine.CHECKS,
    bundle,
    certificate,
    server,
    state,
    data,
    memory_limit,
)
