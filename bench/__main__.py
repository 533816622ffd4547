"""Run all benchmarks, print a table and write bench/results.json."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import codec, durable, federation, memory, recording, simulator, strangers, topk, vectors, watch
from common.errors import UserError
from common.learning.data import DataFolder
from common.messages.flower import quiet_flower
from common.program.malloc import keep_freed_memory

WIDTH = 110  # so that no name is broken, also where this is written to a file


def main() -> None:
    """Measure, print, write."""
    quiet_flower()
    keep_freed_memory()
    try:
        ratios = [*federation.run(), *recording.run(), *strangers.run(), *watch.run()]
        data = DataFolder.choose(None)
        uniform = vectors.normal_vector()
        ratios += [*topk.run(uniform, data), *codec.run(uniform, vectors.trained_vector(data)), *durable.run(uniform)]
        ratios += [*simulator.run(data), *memory.run()]
    except UserError as error:
        sys.exit(f"error: {error}")
    table = Table("what", "ratio", "limit", "")
    for ratio in ratios:
        table.add_row(
            ratio.name,
            f"{ratio.value:.4g}",
            "" if ratio.limit is None else f"{ratio.limit:.3g}",
            "" if ratio.holds else "MISSED",
        )
    Console(width=WIDTH).print(table)
    path = Path(__file__).parent / "results.json"
    path.write_text(json.dumps([asdict(ratio) for ratio in ratios], indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
