"""The experiment of a run as one flat list of settings, and on what data it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.experiment.plain_yaml import read_yaml
from common.say import LONGEST_LINE
from server.runs.run_folder import DATA, EXPERIMENT
from server.watch.growing_file import read_regular
from server.watch.loose import number, table, text

Setting = str | float | bool | None


@dataclass(frozen=True)
class Settings:
    """What experiment.yaml says."""

    data: str = ""
    values: dict[str, Setting] = field(default_factory=dict)  # by flat names, such as algorithm.density

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Read a run's experiment; nothing is known of one that cannot be read."""
        try:
            content = read_regular(folder / EXPERIMENT).decode("utf-8", "replace")
            values = dict(_flat(table(read_yaml(content, EXPERIMENT))))
        except (OSError, UserError):
            return cls()
        first = content.partition("\n")[0]
        return cls(text(first.removeprefix(DATA), LONGEST_LINE) if first.startswith(DATA) else "", values)

    def name_of(self, key: str) -> str:
        """Return a setting that is a text; empty where there is none."""
        return text(self.values.get(key))

    def number_of(self, key: str) -> float | None:
        """Return a setting that is a number; None where there is none."""
        return number(self.values.get(key))


def _flat(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    for key, value in section.items():
        name = prefix + text(str(key))
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, bool) or value is None:
            yield name, value
        elif (found := number(value)) is not None:
            yield name, found
        else:
            yield name, text(str(value), LONGEST_LINE)
