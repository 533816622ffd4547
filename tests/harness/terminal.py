"""A program on a terminal of its own, as a user has it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from server.deploy.local_clients import leaving

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ROWS = 40


class OnTerminal:
    """A process, and what it has written so far, without what only a terminal understands."""

    def __init__(self, process: subprocess.Popen[bytes], keyboard: int) -> None:
        self.process = process
        self._keyboard = keyboard
        self._written = b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self._written.decode(errors="replace")).replace("\r", "")

    def press_ctrl_c(self) -> None:
        os.write(self._keyboard, b"\x03")

    def wait(self, seconds: float) -> int:
        """Return the exit code, when all that was written is read."""
        code = self.process.wait(seconds)
        self._reading.join(seconds)
        return code

    def _read(self) -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(self._keyboard, 1 << 16):
                self._written += data


@contextmanager
def on_terminal(command: Sequence[str] | str, cwd: Path, columns: int = 80) -> Iterator[OnTerminal]:
    """Start a program, or a line of a shell, on a terminal that is so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        process_group=None,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": ""},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    with leaving(process, 20):
        yield OnTerminal(process, ours)
    os.close(ours)
