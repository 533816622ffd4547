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
    survivors = coefficients.survivors
    table = Table("column", title=f"{len(survivors)} of {coefficients.weights} coefficients are not zero")
    table.add_column("for each unit", justify="right")
    for one in (*survivors[:MOST_ROWS], *coefficients.intercepts[:MOST_ROWS]):
        table.add_row(Text(one_line(one.name)), f"{one.value:.4g}")
    if (more := len(survivors) - MOST_ROWS) > 0:
        table.caption = f"and {more} smaller ones"
    return table


def in_a_line(coefficients: Coefficients) -> str:
    """Return the largest coefficients as one line."""
    survivors = coefficients.survivors
    terms = ", ".join(f"{one_line(one.name)} {one.value:.4g}" for one in survivors[:MOST_TERMS])
    more = f", and {len(survivors) - MOST_TERMS} smaller ones" if len(survivors) > MOST_TERMS else ""
    return f"{len(survivors)} of {coefficients.weights} coefficients are not zero: {terms}{more}"
