"""The event loop of all streams, in a thread of its own, for as long as the process lives."""

from __future__ import annotations

import asyncio
import functools
import threading


@functools.cache
def loop_of_streams() -> asyncio.AbstractEventLoop:
    """Return the loop; there is one, as gRPC cannot do without the first that it was used in."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="link", daemon=True).start()
    return loop
