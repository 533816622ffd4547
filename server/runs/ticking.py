"""What is done every second beside a run, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def every_second(action: Callable[[], None]) -> Iterator[None]:
    """Do something at once and then every second; when the context ends it is done for the last time."""
    over = threading.Event()

    def tick() -> None:
        action()
        while not over.wait(1.0):
            action()

    thread = threading.Thread(target=tick, name=f"every second: {action.__qualname__}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
