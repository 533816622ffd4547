"""Serving watch: where it listens, and until when."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe

import uvicorn

from common.errors import UserError
from common.program.address import host_and_port
from common.say import Say
from server.watch.app import make_app
from server.watch.door import Door
from server.watch.watched import Watched

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORT = 8092
MOST_TRIES = 100  # ports, one after the other
MOST_CONNECTIONS = 500
TOKEN_BYTES = 16
NICENESS = 10  # beside a run, which goes first
LEAVE_SECONDS = 1  # pages that are open do not keep us


def serve(root: Path, listen: str | None, say: Say, *, leave_with_parent: bool) -> None:
    """Show the runs under a folder until somebody ends this process; say once where."""
    if not root.is_dir():
        raise UserError(f"{root} is no folder: name the one that runs are in")
    with _listening(listen) as listener:
        host, port = listener.getsockname()[:2]
        named = host_and_port(listen)[0] if listen else host
        token = "" if named in LOOPBACK else token_urlsafe(TOKEN_BYTES)
        door = Door(make_app(Watched(root)), host=named, cookie=f"proxskip_watch_{port}", token=token)
        if leave_with_parent:
            os.nice(NICENESS)
            threading.Thread(target=_leave_with_parent, daemon=True).start()
        say(f"watching {root} at {_address(named, port, token)}")
        config = uvicorn.Config(
            door,
            log_level="critical",
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=LEAVE_SECONDS,
            ws="none",
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _address(host: str, port: int, token: str) -> str:
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - we only compare
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/" + (f"?token={token}" if token else "")


def _listening(listen: str | None) -> socket.socket:
    """Return a socket at the address that is given, or at the first free port of the usual ones."""
    if listen:
        host, port = host_and_port(listen)
        if not host or not port.isdecimal() or int(port) > 65535:
            raise UserError(f"--listen {listen}: expected HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}")
        try:
            return _bound(host, int(port))
        except OSError as error:
            raise UserError(f"--listen {listen}: {error.strerror or error}; name another address or port") from None
    for port_number in range(DEFAULT_PORT, DEFAULT_PORT + MOST_TRIES):
        try:
            return _bound(LOOPBACK[0], port_number)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise UserError(f"cannot listen on {LOOPBACK[0]}: {error.strerror or error}") from None
    raise UserError(f"the ports {DEFAULT_PORT} to {port_number} are all taken: name another with --listen HOST:PORT")


def _bound(host: str, port: int) -> socket.socket:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)


def _leave_with_parent() -> None:
    """Leave when the process that has started this one is gone: its end of our input is then closed."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
