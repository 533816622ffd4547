"""How everything that runs tells its operator what there is to know: through a function like `print`."""

from collections.abc import Callable

Say = Callable[[str], None]
