"""Run fuzzers, each for so many seconds: `python -m fuzz SECONDS [TARGET ...]`; what they find stays in build/fuzz."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = ("bundle", "codec", "experiment", "memory", "messages")
FOLDER = Path(__file__).parent.parent / "build" / "fuzz"
LONGEST_SECONDS = 10  # for one input, on a busy machine
MOST_MEMORY_MB = 1_500  # of the process, of which torch and Flower take a third
LONGEST_SPELL_SECONDS = 240  # then a new process goes on: the engine itself takes a little more with every input
OPTIONS = (f"-timeout={LONGEST_SECONDS}", f"-rss_limit_mb={MOST_MEMORY_MB}", "-print_final_stats=1")
LAST_LINES = 30  # of the log, which tell what was found


def main(seconds: int, names: list[str]) -> int:
    """Run one fuzzer after the other; return how many have found something."""
    spells = [min(LONGEST_SPELL_SECONDS, seconds - start) for start in range(0, seconds, LONGEST_SPELL_SECONDS)]
    found = [name for name in names if not all(_finds_nothing(name, spell) for spell in spells)]
    print(f"{len(names) - len(found)} of {len(names)} fuzzers found nothing in {seconds} s each")
    return len(found)


def _finds_nothing(name: str, seconds: int) -> bool:
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    with tempfile.TemporaryDirectory() as here, log.open("w") as output:
        environment = {**os.environ, "TMPDIR": here, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "fuzz.engine", name, str(folder), f"-max_total_time={seconds}", *OPTIONS]
        code = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode  # noqa: S603
    lines = log.read_text(errors="replace").splitlines()
    inputs = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "no")
    print(f"{name}: {inputs} inputs", flush=True)
    if code:
        print(*lines[-LAST_LINES:], f"{name}: the input is in {folder}; keep it as a test", sep="\n", flush=True)
    return not code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:] or list(TARGETS)))
