"""A server that comes back: the process that does the work may be killed, or fail, and is started again.

The program is two processes. The one that was started only waits for the other, which does everything; where that is
killed, by the system for want of memory say, or ends by an error that nobody has thought of, a new one goes on with the
run from its journal. What the user can mend is no reason to try again. Each ends when the other does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from common.program.start import UNEXPECTED
from common.say import Event, Say
from server.runs.events import EventLog
from server.runs.run_folder import ROUNDS, RunFolder

MOST_DEATHS = 3  # one after the other without a round in between
LAST_WORDS_SECONDS = 1.0  # a child is gone with its end of the pipe, unless somebody else has that too
ON_PURPOSE = (signal.SIGINT, signal.SIGTERM)


class Guard:
    """What passes between the two processes; in a program without a guard, nothing."""

    def __init__(self) -> None:
        self.interrupted: Path | None = None  # the folder of the run that this process goes on with
        self._to_parent: int | None = None

    def announce(self, folder: Path) -> None:
        """Say that the run in this folder can go on from its journal."""
        if self._to_parent is not None:
            os.write(self._to_parent, f"{folder.resolve()}\n".encode())

    def stand(self, say: Say) -> None:
        """Return in a process that does the work; the one that called this stays here until that is done."""
        if not sys.platform.startswith("linux"):  # elsewhere a process with so many libraries cannot be forked safely
            return
        deaths, size = 0, 0
        while True:
            code = self._watch_child()
            if code is None:
                return
            if self.interrupted is None or not _may_help_to_try_again(code):
                sys.exit(_exit_code(code))
            before, size = size, _size(self.interrupted / ROUNDS)
            deaths = 1 if size > before else deaths + 1
            kind = "server failed" if code == UNEXPECTED else "server killed"
            log = EventLog(RunFolder(self.interrupted), say)
            if deaths > MOST_DEATHS:
                often = f"{deaths} times without a round in between; the last time it {_what_happened(code)}"
                log.say(Event(f"the server gave up: it ended {often}", kind=kind))
                sys.exit(_exit_code(code))
            what_now = f"it goes on from its journal in {self.interrupted}"
            log.say(Event(f"the server {_what_happened(code)}; {what_now}", kind=kind))

    def _watch_child(self) -> int | None:
        """Return None in a new child, and in the parent how it ended: an exit code, or a signal less than zero."""
        from_child, to_parent = os.pipe()
        from_parent, to_child = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            os.close(from_child)
            os.close(to_child)
            os.setpgid(0, 0)  # Ctrl-C reaches the parent only, which passes it on once
            self._to_parent = to_parent
            threading.Thread(target=_end_with_parent, args=(from_parent,), daemon=True).start()
            return None
        os.close(to_parent)
        os.close(from_parent)
        before = {number: signal.signal(number, lambda one, _: _pass_on(child, one)) for number in ON_PURPOSE}
        listener = threading.Thread(target=self._listen, args=(from_child,), daemon=True)
        listener.start()
        _, status = os.waitpid(child, 0)
        listener.join(LAST_WORDS_SECONDS)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(to_child)
        return os.waitstatus_to_exitcode(status)

    def _listen(self, from_child: int) -> None:
        with os.fdopen(from_child) as announcements:
            for line in announcements:
                self.interrupted = Path(line.rstrip("\n"))


def _may_help_to_try_again(code: int) -> bool:
    """Say so of a signal that nobody has sent on purpose, and of an error that nobody has thought of."""
    return code == UNEXPECTED or (code < 0 and -code not in ON_PURPOSE)


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _what_happened(code: int) -> str:
    if code == UNEXPECTED:
        return "failed by an unexpected error, which is told above"
    return f"was killed ({signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'})"


def _pass_on(child: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it may have ended just now
        os.kill(child, number)


def _end_with_parent(from_parent: int) -> None:
    """End at once when the process that watches over us is gone: somebody killed it, and does not want us."""
    os.read(from_parent, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
