"""Be in a federation: the nodes of this process, from the first to the last moment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import grpc
import torch

from client.app import Resident, make_app
from client.limits import limit_memory
from client.link import Way
from client.node import PROGRESS_SECONDS, ResidentNode, Workers
from client.part import Part
from client.screen import Screen
from client.state_folder import identity_of, in_use
from client.stream import channel_to
from common.errors import UserError
from common.program.device import choose_device
from common.program.garbage import leave_alone_what_is_loaded
from common.say import sparing

MOST_LINES_A_MINUTE = 100
MOST_WORKERS = 8  # more would wait for each other, not for the disk
LONGEST_LEAVE_SECONDS = 1.9  # whatever a server has made this process do


def prepare(device: str, threads: int | None, memory_limit: int | None) -> torch.device:
    """Take of this machine what the client may, and say now, not when the server first asks, if that cannot be.

    Return the device that is meant.
    """
    chosen = choose_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    if memory_limit is not None:
        limit_memory(memory_limit)
    return chosen


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The clients of this process, and what they share."""

    ways: Sequence[Way]  # of each of them
    parts: Sequence[Part | None]
    config: Mapping[str, bool | float | int | str]
    max_upload_kbps: float | None


def serve(membership: Membership, *, leave_with_parent: bool) -> None:
    """Run a node for each part until a signal, or until the first of them gives up."""
    state = str(membership.config.get("state") or "")
    with (
        in_use(Path(state), [name for _, name in membership.ways]) if state else nullcontext(),
        Screen() as screen,
    ):
        asyncio.run(_serve(membership, screen, leave_with_parent=leave_with_parent))


async def _serve(membership: Membership, screen: Screen, *, leave_with_parent: bool) -> None:
    channels = {link: channel_to(link) for link in {link for link, _ in membership.ways}}
    workers = Workers(min(len(membership.parts), MOST_WORKERS))
    nodes = [
        _node(membership, way, part, channels[way[0]], workers, screen)
        for way, part in zip(membership.ways, membership.parts, strict=True)
    ]
    _leave_at_a_signal(nodes)
    if leave_with_parent:
        threading.Thread(target=_leave_with_parent, daemon=True).start()
    leave_alone_what_is_loaded()
    telling = asyncio.create_task(_tell_progress(nodes, screen))
    ends = await _ends_of(nodes)
    telling.cancel()
    for channel in channels.values():
        await channel.close()
    for end in ends:
        raise end if isinstance(end, UserError) else UserError(f"something went wrong here: {end!r}")


async def _ends_of(nodes: Sequence[ResidentNode]) -> list[BaseException]:
    """Run all nodes until one of them ends; return the reasons of those that gave up."""
    running = [asyncio.create_task(node.run()) for node in nodes]
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for node in nodes:
        node.stop()
    ends = await asyncio.gather(*running, return_exceptions=True)
    return [end for end in ends if end is not None]


def _leave_at_a_signal(nodes: Sequence[ResidentNode]) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for node in nodes:
            node.stop()

    def leave(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, LONGEST_LEAVE_SECONDS)  # the system then ends what does not end by itself
        loop.call_soon_threadsafe(stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


async def _tell_progress(nodes: Sequence[ResidentNode], screen: Screen) -> None:
    """Tell the servers, and who sits here, how far the clients are."""
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        for node in nodes:
            node.tell_progress()
        screen.show([node.standing for node in nodes])


def _node(
    membership: Membership,
    way: Way,
    part: Part | None,
    channel: grpc.aio.Channel,
    workers: Workers,
    screen: Screen,
) -> ResidentNode:
    link, name = way
    config = {**membership.config, "name": name, "partition": f"{part.index}/{part.of}" if part else ""}
    state = str(config.get("state") or "")
    say = sparing(screen.say_as(name), MOST_LINES_A_MINUTE, 60.0)
    resident = Resident()
    node = ResidentNode(
        link,
        channel,
        workers,
        make_app(resident, say),
        config,
        identity_of(Path(state) if state else None, name),
        say,
        membership.max_upload_kbps,
    )
    resident.on_step, resident.on_run = node.note_step, node.note_run
    return node


def _leave_with_parent() -> None:
    """Leave when the process that started us is gone: then our standard input ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
