"""Checks of a machine that is to be a federation's server; to add one, write a function and put it into CHECKS."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from common.doctor import machine
from common.doctor.findings import Check, Finding, ok, problem, warning
from common.doctor.machine import Machine
from common.doctor.secrets import expiry, readable_by_others
from common.errors import UserError
from common.program.address import host_and_port
from common.program.identity import load_private_key
from common.say import listed
from common.storage.lock import is_locked
from server.keys.certificates import alternative_name
from server.keys.folder import DEFAULT_PORT, Keys
from server.runs.run_folder import RunFolder
from server.watch.folders import run_folders


@dataclass(frozen=True, kw_only=True)
class ServerMachine(Machine):
    """What there is to check; `folder` holds the runs."""

    keys: Path | None
    listen: str | None

    @property
    def opened_keys(self) -> Keys | None:
        """Return the keys, where some are named and there."""
        return Keys(self.keys) if self.keys is not None and (self.keys / "ca.crt").is_file() else None


def port(server: ServerMachine) -> Finding:
    """Find whether the server can listen where clients look for it."""
    keys = server.opened_keys
    address = server.listen or (keys.listen if keys else f"127.0.0.1:{DEFAULT_PORT}")
    host, number = host_and_port(address)
    if not number.isdecimal():
        return problem(f"{address} is no HOST:PORT", f"say it as in --listen 0.0.0.0:{DEFAULT_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, int(number)), family=family).close()
    except OSError as error:
        return problem(f"cannot listen on {address}: {error.strerror}", _remedy_for_port(error))
    return ok(f"{address} can be listened on")


def _remedy_for_port(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "a server may be running already: end it, or say --listen HOST:PORT"
    if error.errno == errno.EACCES:
        return "take a port above 1023"
    return "--listen 0.0.0.0:PORT listens on all addresses of this machine"


def keys(server: ServerMachine) -> Finding | None:
    """Find who may join."""
    if server.keys is None:
        return None
    opened = Keys.open(server.keys)
    names = list(opened.clients())
    opened.revoked()  # refuses what is no key
    if not names:
        return warning("nobody may join yet", f"proxskip-server keys add NAME --keys {server.keys}")
    return ok(f"{len(names)} may join: {listed(names)}")


def secrets(server: ServerMachine) -> Finding | None:
    """Find whether the private keys are for their owner alone."""
    if (opened := server.opened_keys) is None:
        return None
    bundles = sorted((opened.folder / "bundles").glob("*.join"))
    private = [opened.folder / "server.key", opened.folder / "admin" / "ca.key"]
    if found := readable_by_others([*private, *bundles]):
        return problem(f"others may read {listed(list(map(str, found)))}", f"chmod -R go= {opened.folder}")
    if bundles:
        return warning(f"still here: {listed(list(map(str, bundles)))}", "hand bundles over, then delete them here")
    return ok("the private keys are for their owner alone")


def certificate(server: ServerMachine) -> Finding | None:
    """Find whether the server's certificate is good, and its key goes with it."""
    if (opened := server.opened_keys) is None:
        return None
    remedy = f"make a new one: proxskip-server keys init {opened.folder} --host HOST"
    pem = (opened.folder / "server.crt").read_bytes()
    shown = x509.load_pem_x509_certificate(pem)
    if load_private_key((opened.folder / "server.key").read_bytes()).public_key() != shown.public_key():
        return problem("server.key is not the key of server.crt", remedy)
    try:
        shown.verify_directly_issued_by(x509.load_pem_x509_certificate((opened.folder / "ca.crt").read_bytes()))
    except Exception as error:  # a broken signature has several kinds of errors
        return problem(f"server.crt is not signed by ca.crt: {error!r}", remedy)
    return expiry(pem, "the server's certificate", remedy)


def authority(server: ServerMachine) -> Finding | None:
    """Find whether the federation's own authority is still good."""
    if (opened := server.opened_keys) is None:
        return None
    remedy = "make new keys in another folder (`keys init`), and new bundles for all clients"
    return expiry((opened.folder / "ca.crt").read_bytes(), "the authority, like all clients,", remedy)


def host_name(server: ServerMachine) -> Finding | None:
    """Find whether the server's certificate is for the name that clients know, and that leads anywhere."""
    if (opened := server.opened_keys) is None:
        return None
    host = host_and_port(opened.address)[0]
    shown = x509.load_pem_x509_certificate((opened.folder / "server.crt").read_bytes())
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if alternative_name(host) not in names:
        return problem(f"the server's certificate does not name {host}", f"keys init {opened.folder} --host {host}")
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return warning(f"{host} cannot be looked up here: {error.strerror}", "can clients? Else name an IP address")
    return ok(f"clients reach it as {opened.address}")


def runs(server: ServerMachine) -> Finding | None:
    """Find what has become of the runs in the folder."""
    states: dict[str, list[str]] = {"finished": [], "under way": [], "interrupted": [], "unreadable": []}
    for path in run_folders(server.folder).values():
        states[_state_of(RunFolder(path))].append(str(path))
    found = ", ".join(f"{len(names)} {state}" for state, names in states.items() if names)
    if damaged := states["unreadable"]:
        return warning(f"{found}: {listed(damaged)}", "another version may read it; nobody else needs it")
    if left := states["interrupted"]:
        return warning(f"{found}: {listed(left)}", f"go on with --resume {left[0]}, or delete what nobody wants")
    return ok(found) if found else None


def _state_of(folder: RunFolder) -> str:
    """Return what has become of a run."""
    from server.runs.journal import Journal

    if is_locked(folder.path):
        return "under way"
    try:
        folder.rounds()
        if folder.is_finished:
            return "finished"
        Journal(folder.path, folder.experiment()).read()
    except UserError:
        return "unreadable"
    return "interrupted"


CHECKS: tuple[Check[ServerMachine], ...] = (
    *machine.CHECKS,
    port,
    keys,
    secrets,
    certificate,
    authority,
    host_name,
    runs,
)
