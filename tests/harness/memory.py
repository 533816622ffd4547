"""What is in memory: of messages here, and altogether in any process."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from flwr.app import Array, Message, RecordDict


def messages_in_memory() -> int:
    gc.collect()
    return sum(type(one) in (Message, RecordDict, Array) for one in gc.get_objects())


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
