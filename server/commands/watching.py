"""A page to watch for the time of a run, by a process of its own: whatever becomes of it, the run does not notice."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from common.say import Say, one_line

RUNS = Path("runs")


@contextmanager
def watching(folder: Path, say: Say, *, wanted: bool) -> Iterator[None]:
    """Show a run in a browser as long as the context lasts, if that is wanted; where it cannot be, say why."""
    process = _started(_root(folder), say) if wanted else None
    if process is None:
        yield
        return
    over = threading.Event()
    teller = threading.Thread(target=_tell, args=(process, folder, say, over), daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        process.kill()  # it only reads
        teller.join()
        process.communicate()  # closes our end of its input, and waits for it


def _root(folder: Path) -> Path:
    """Return the folder of all runs if this one is in there; elsewhere only the run itself is shown."""
    return RUNS if RUNS.resolve() in folder.resolve().parents else folder


def _started(root: Path, say: Say) -> subprocess.Popen[str] | None:
    # -P: our package is meant, not a folder `server` of the user's where this program was started.
    command = [sys.executable, "-P", "-m", "server", "watch", str(root), "--leave-with-parent"]
    pipe = subprocess.PIPE
    try:
        # A session of its own: Ctrl-C is for us, who end it; else it would complain of that while it starts.
        return subprocess.Popen(  # noqa: S603
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
    except OSError as error:
        say(f"there is no page to watch: {error}")
        return None


def _tell(process: subprocess.Popen[str], folder: Path, say: Say, over: threading.Event) -> None:
    """Pass on where the page is, or the last line of what has kept it from being there."""
    assert process.stdout is not None
    last = ""
    with process.stdout:
        for line in process.stdout:
            if line.startswith("watching "):
                say(f"watch it at {line.split()[-1]}#/run/{quote(_run_id(folder), safe='')}")
                return
            last = line.strip() or last
    if not over.is_set():
        say(f"there is no page to watch: {one_line(last.removeprefix('error: ')) or 'its process was killed'}")


def _run_id(folder: Path) -> str:
    root = _root(folder)
    return folder.resolve().name if root == folder else folder.resolve().relative_to(root.resolve()).as_posix()
