"""What a shell offers at the tab key, asked as a shell asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_programs import NAMES, SLOW_TO_IMPORT, imported_packages

PROGRAMS = Path(sys.executable).parent
IN_BASH = """
source <({program} --show-completion)
COMP_WORDS=({program} {words})
COMP_CWORD={place}
{function} {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def offered(program: str, *words: str) -> tuple[list[str], str]:
    """Return what is offered for the last of the words, and what was imported for it."""
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", PROGRAMS / program],
        env={
            **os.environ,
            variable: "complete_bash",
            "COMP_WORDS": " ".join([program, *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split(), finished.stderr


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        ("proxskip-server", ["simulate", "dig"], ["digits"]),
        ("proxskip-server", ["run", "cifar"], ["cifar10", "cifar10-small"]),
        ("proxskip-server", ["compare", "digits", "fed"], [name for name in NAMES if name.startswith("fed")]),
        ("proxskip-server", ["reproduce", "al"], ["all"]),
        ("proxskip-server", ["keys", "re"], ["revoke"]),
        ("proxskip-server", ["local", "digits", "--track", "m"], ["mlflow"]),
        ("proxskip-client", ["doctor", "--experiment", "dig"], ["digits"]),
        ("proxskip-client", ["jo"], ["join"]),
    ],
)
def test_names_are_offered_without_waiting_for_torch(program: str, words: list[str], expected: list[str]) -> None:
    found, imports = offered(program, *words)
    assert found == expected
    assert imported_packages(imports)  # else nothing is shown by what is not there
    assert not imported_packages(imports) & SLOW_TO_IMPORT


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [("proxskip-server", ["simulate", "dig"], "digits\n"), ("proxskip-client", ["ke"], "keys\n")],
)
def test_bash_takes_what_show_completion_prints(program: str, words: list[str], expected: str) -> None:
    function = f"_{program.replace('-', '_')}_completion"
    script = IN_BASH.format(program=program, function=function, words=" ".join(words), place=len(words))
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    finished = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (finished.stdout, finished.stderr) == (expected, "")
