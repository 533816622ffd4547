"""A client's state folder: for its owner alone, and each client in it for one process at a time."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from common.errors import UserError
from common.program.descriptors import most_connections
from common.storage.lock import locked
from common.storage.replace import OTHERS, read_small_file, replace_file

LOCK_SECONDS = 10.0  # for which a process that leaves may still be at work
IDENTITY = re.compile(rb"[0-9a-f]{32}")


def identity_of(folder: Path | None, client: str) -> str:
    """Return what tells this client from another of the same name, also after a restart if it has a folder."""
    if folder is None:
        return uuid4().hex
    path = _identity_file(folder, client)
    try:
        identity = read_small_file(path)
    except FileNotFoundError:
        identity = uuid4().hex.encode()
        replace_file(path, identity, secret=True)
    except OSError as error:
        raise UserError(f"cannot read the client's identity from {path}: {error.strerror}") from None
    if not IDENTITY.fullmatch(identity):
        raise UserError(f"{path} is not a client's identity; move it away, and {client} is a new one to the server")
    return identity.decode()


@contextmanager
def in_use(folder: Path, clients: Sequence[str]) -> Iterator[None]:
    """Have clients' files for this process alone: a second one would write over what the first remembers."""
    most_connections()  # each lock takes a descriptor, and a process may hold a thousand clients
    with ExitStack() as locks:
        for client in clients:
            identity_of(folder, client)  # so that there is a file
            taken = f"--state {folder}: another process is {client}, and its memory is there; end that one first"
            locks.enter_context(locked(_identity_file(folder, client), LOCK_SECONDS, taken))
            _tighten(folder, client)
        if folder.stat().st_mode & OTHERS:  # it may have been somebody's before it was ours: not for us to change
            sys.stderr.write(
                f"warning: others on this machine may look into --state {folder}; say chmod 700 {folder}\n"
            )
        yield


def _identity_file(folder: Path, client: str) -> Path:
    return folder / f"{client}.identity"


def _tighten(folder: Path, client: str) -> None:
    """Take from others what an earlier version, or a copy, has left readable for them."""
    for file in (folder / f"{client}.{kind}" for kind in ("identity", "memory.0", "memory.1")):
        if file.is_file() and file.stat().st_mode & OTHERS:
            file.chmod(0o600)
