"""How often somebody may knock, or is worth a word: remembered for a while, and of no more than so many."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Hashable

MOST_REMEMBERED = 10_000  # so that nobody fills the memory by knocking under ever new names
SECONDS_BETWEEN_CLEANINGS = 1.0
HOUSEHOLD_BITS = 64  # of an address of IPv6: whoever has one has all that begin alike


class Limit:
    """Lets each key pass so many times in a while; nobody passes for whom there is no room to remember it."""

    def __init__(self, times: int, seconds: float) -> None:
        self._times = times
        self._seconds = seconds
        self._passed: dict[Hashable, tuple[float, int]] = {}  # until when, and how often so far
        self._next_cleaning = 0.0

    def allows(self, key: Hashable) -> bool:
        """Count one more time, and say whether it was not one too many."""
        now = time.monotonic()
        end, times = self._passed.get(key, (0.0, 0))
        if end <= now:
            end, times = now + self._seconds, 0
            if not self._has_room(now):
                return False
        self._passed[key] = (end, min(times + 1, self._times + 1))
        return times < self._times

    def seconds_left(self, key: Hashable) -> float:
        """Return for how long a key that has used all its times has to wait; nothing where it need not."""
        end, times = self._passed.get(key, (0.0, 0))
        return max(end - time.monotonic(), 0.0) if times >= self._times else 0.0

    def _has_room(self, now: float) -> bool:
        if len(self._passed) >= MOST_REMEMBERED and now >= self._next_cleaning:
            self._next_cleaning = now + SECONDS_BETWEEN_CLEANINGS
            self._passed = {key: one for key, one in self._passed.items() if one[0] > now}
        return len(self._passed) < MOST_REMEMBERED


def peer_of(address: str) -> str:
    """Return whose an address is."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a name, or nothing
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, HOUSEHOLD_BITS), strict=False))
    return str(ip)
