"""Where settings are searched: ranges of numbers, and those of the options that only some methods have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.errors import UserError
from common.experiment import plugins
from common.rounds.algorithm import Algorithm


@dataclass(frozen=True)
class Span:
    """A range of positive numbers, drawn from uniformly in their logarithm."""

    low: float
    high: float

    @classmethod
    def read(cls, option: str, text: str) -> Span:
        """Read `LOW:HIGH`."""
        try:
            low, high = map(float, text.split(":"))
        except ValueError:
            raise UserError(f"{option} {text}: expected LOW:HIGH, such as 1e-5:1e-3") from None
        if not 0 < low <= high < math.inf:
            raise UserError(f"{option} {text}: expected 0 < LOW <= HIGH")
        return cls(low, high)

    def at(self, share: float) -> float:
        """Return the number at a share of the way, between 0 and 1."""
        return self.low * math.pow(self.high / self.low, share)


OPTIONS: Mapping[str, Span] = {
    "l1_strength": Span(1e-4, 1e-1),  # of RandProx
    "upload_density": Span(0.02, 0.5),  # of LoCoDL
    "control_step": Span(0.05, 1.0),  # of LoCoDL
    "senders_per_place": Span(2, 64),  # of TAMUNA
    "arena": Span(1.5, 4.0),  # of Sparse-ProxSkip in an arena
}


def options_with(changes: Sequence[str], algorithms: Sequence[str]) -> dict[str, Span]:
    """Return the ranges of options, some of them as `NAME=LOW:HIGH` says, of which one of the algorithms has each."""
    options, methods = dict(OPTIONS), [plugins.find(Algorithm.plugin_package, name, Algorithm) for name in algorithms]
    for change in changes:
        name, separator, text = change.partition("=")
        if not (name and separator):
            raise UserError(f"--option {change}: expected NAME=LOW:HIGH, such as l1_strength=1:100")
        if not any(method.has_option(name) for method in methods):
            raise UserError(f"--option {change}: expected an option of {', '.join(algorithms)}, which {name} is not")
        options[name] = Span.read(f"--option {name}", text)
    return options
