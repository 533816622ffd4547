"""One fuzzer in one process, as `python -m fuzz` starts it: `python -m fuzz.engine TARGET FOLDER [OPTION ...]`."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import atheris

from fuzz.target import Target

INSTRUMENTED = ["client", "common", "strategies"]
SHARE_CHANGED_BLINDLY = 0.3
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of Python's audit.
CHANGING = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
FORBIDDEN = ("os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.bind", "socket.connect", "subprocess.Popen")


class ForbiddenError(BaseException):
    """A reader did what no reader may; nobody catches this."""


def main(name: str, folder: Path, options: list[str]) -> None:
    """Look for bytes that a target cannot stand, and end the process."""
    with atheris.instrument_imports(include=INSTRUMENTED):
        target: Target = importlib.import_module(f"fuzz.{name}").TARGET
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    for seed in target.seeds():
        target.read(seed)  # what is imported only when it is needed is imported now
    os.chdir(tempfile.gettempdir())
    sys.addaudithook(_forbid)
    arguments = [name, f"-max_len={target.longest_bytes}", f"-artifact_prefix={folder}/", *options, str(corpus)]
    atheris.Setup(arguments, target.read, custom_mutator=_mutator(target))
    atheris.Fuzz()


def _mutator(target: Target) -> Callable[[bytes, int, int], bytes]:
    def mutated(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < SHARE_CHANGED_BLINDLY:
            return bytes(atheris.Mutate(data, most))
        changed = target.mutate(data, lambda part: bytes(atheris.Mutate(part, most)), random)
        return changed if len(changed) <= most else data

    return mutated


def _forbid(event: str, arguments: tuple[object, ...]) -> None:
    """Hear what the process does, and end it where it writes beside its temporary folder, or starts something."""
    if event in FORBIDDEN:
        raise ForbiddenError(event, arguments)
    is_writing = event in CHANGING or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING)
    path = arguments[0] if is_writing else None
    if isinstance(path, str) and not Path(path).resolve().is_relative_to(tempfile.gettempdir()):
        raise ForbiddenError(event, path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3:])
