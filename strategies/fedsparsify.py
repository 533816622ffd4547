"""FedSparsify: FedHT that starts dense and grows sparse by a cubic schedule.

Stripelis et al., "Federated Progressive Sparsification (Purge, Merge, Tune)+", 2022, with the schedule of
Zhu and Gupta, "To prune, or not to prune", 2017, Equation 1, over all rounds T and from a dense start.

    density of round t   q_t <- q + (1 - q) (1 - t/T)^3
    client               w_i <- w_i - gamma grad f_i(w_i)
    server               w   <- TopK(1/N sum_i w_i)  at density q_t
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.fedht import FedHT


@dataclass(frozen=True, kw_only=True)
class FedSparsify(FedHT):
    """Gradual magnitude pruning at the server."""

    def round_density(self, round_number: int, rounds: int) -> float:
        """Fall from dense to the target, fast at first."""
        return self.density + (1 - self.density) * (1 - round_number / rounds) ** 3
