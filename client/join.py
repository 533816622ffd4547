"""Be in a federation: the nodes of this process, from the first to the last moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from client.app import Resident, default_name, make_app
from client.limits import limit_memory
from client.link import Link
from client.node import ResidentNode
from client.part import Part
from common.errors import UserError
from common.program.device import choose_device

ALL_GONE_SECONDS = 5.0


def prepare(device: str, threads: int | None, memory_limit: int | None) -> None:
    """Take of this machine what the client may, and say now, not when the server first asks, if that cannot be."""
    choose_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    if memory_limit is not None:
        limit_memory(memory_limit)


def nodes_of(
    link: Link,
    name: str | None,
    parts: Sequence[Part | None],
    shared: Mapping[str, bool | float | int | str],
    max_upload_kbps: float | None,
) -> list[ResidentNode]:
    """Return one node a part, with what they share of the configuration and what is their own."""
    nodes = []
    for part in parts:
        own_name = name or default_name(part)
        config = {**shared, "name": own_name, "partition": f"{part.index}/{part.of}" if part else ""}
        say = _say_as(own_name)
        nodes.append(ResidentNode(link, make_app(Resident(), say), config, say, max_upload_kbps))
    return nodes


def serve(nodes: Sequence[ResidentNode], *, leave_with_parent: bool) -> None:
    """Run the nodes, each in a thread of its own, until a signal or until the first of them gives up."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    if leave_with_parent:
        threading.Thread(target=_leave_with_parent, daemon=True).start()
    failures: list[UserError] = []
    threads = [threading.Thread(target=_run, args=(node, over, failures), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    while not over.wait(1.0):  # in turns, so that signals are heard on every platform
        pass
    for node in nodes:
        node.stop()
    end = time.monotonic() + ALL_GONE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if failures:
        raise failures[0]


def _run(node: ResidentNode, over: threading.Event, failures: list[UserError]) -> None:
    try:
        node.run()
    except UserError as error:
        failures.append(error)
    except Exception as error:  # so that who started us hears of it
        failures.append(UserError(f"something went wrong here: {error!r}"))
    finally:
        over.set()


def _leave_with_parent() -> None:
    """Leave when the process that started us is gone: then our standard input ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _say_as(name: str) -> Callable[[str], None]:
    def say(text: str) -> None:
        sys.stderr.write(f"{name}: {text}\n")
        sys.stderr.flush()

    return say
