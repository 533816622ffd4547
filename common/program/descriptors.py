"""How many files and connections this process may have open."""

from __future__ import annotations

import sys

KEPT_FOR_FILES = 256
UNKNOWN = 512


def most_connections() -> int:
    """Take all descriptors that the system allows, and return how many of them may be connections."""
    if sys.platform == "win32":
        return UNKNOWN
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(wanted, soft) - KEPT_FOR_FILES
