"""Connections by peer, which gRPC only counts altogether: who has too many loses the newest, so that others get in."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from server.link.limits import peer_of

DESCRIPTORS = Path("/dev/fd")  # of this process, on Linux and macOS; elsewhere nobody is counted
Connection = tuple[str, int]  # the peer's address and port


class Crowd:
    """Looks at the connections of a port now and then, and ends those that are one peer's too many."""

    def __init__(self, port: int, most_of_a_peer: int) -> None:
        self._port = port
        self._most = most_of_a_peer
        self._since: dict[Connection, float] = {}  # when each was first seen

    def thin_out(self) -> list[str]:
        """End what is too much; return the peers that had so many."""
        descriptors = [int(one.name) for one in DESCRIPTORS.iterdir()] if DESCRIPTORS.is_dir() else []
        if len(descriptors) <= self._most:
            return []
        now = time.monotonic()
        seen = {who: one for one in descriptors if (who := self._peer(one))}
        self._since = {who: self._since.get(who, now) for who in seen}
        by_peer: defaultdict[str, list[Connection]] = defaultdict(list)
        for who in sorted(seen, key=self._since.__getitem__):
            by_peer[peer_of(who[0])].append(who)
        for connections in by_peer.values():
            for who in connections[self._most :]:
                self._end(seen[who], who)
        return [peer for peer, connections in by_peer.items() if len(connections) > self._most]

    def _peer(self, descriptor: int) -> Connection | None:
        with suppress(OSError):  # it may be gone by now, or listen
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with _socket(descriptor) as connection:
                    address = connection.getsockname()
                    if isinstance(address, tuple) and address[1] == self._port:
                        peer = connection.getpeername()
                        return str(peer[0]), int(peer[1])
        return None

    def _end(self, descriptor: int, who: Connection) -> None:
        """Shut a connection down, if it is still this one; gRPC then closes it."""
        with suppress(OSError), _socket(descriptor) as connection:
            if connection.getpeername()[:2] == who:
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def _socket(descriptor: int) -> Iterator[socket.socket]:
    """Give a socket of gRPC's under a descriptor of our own, which stays the same socket whatever gRPC does."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection
