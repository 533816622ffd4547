"""What a terminal shows of a model."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from common.say import one_line
from server.model.coefficients import Coefficients

MOST_ROWS = 20
MOST_TERMS = 6


def coefficient_table(coefficients: Coefficients) -> Table:
    """Return the coefficients by name, the largest first, and the intercepts."""
    table = Table("column", title=_how_many(coefficients))
    table.add_column("for each unit", justify="right")
    for one in coefficients.first(MOST_ROWS):
        table.add_row(Text(one_line(one.name)), f"{one.value:.4g}")
    if (more := coefficients.survivors - MOST_ROWS) > 0:
        table.caption = f"and {more} smaller ones"
    return table


def in_a_line(coefficients: Coefficients) -> str:
    """Return the largest coefficients as one line."""
    terms = ", ".join(f"{one_line(one.name)} {one.value:.4g}" for one in coefficients.largest[:MOST_TERMS])
    more = coefficients.survivors - MOST_TERMS
    return f"{_how_many(coefficients)}: {terms}" + (f", and {more} smaller ones" if more > 0 else "")


def _how_many(coefficients: Coefficients) -> str:
    return f"{coefficients.survivors} of {coefficients.weights} coefficients are not zero"
