"""How everything that runs tells an operator what he should know: through a function like `print`."""

from collections.abc import Callable

Say = Callable[[str], None]
