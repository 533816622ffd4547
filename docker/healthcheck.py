"""Say whether this container does what it is for: a server listens, a client is connected to one."""

import sys
from pathlib import Path

ESTABLISHED, LISTENING = "01", "0A"
IPV6_LOOPBACK = "00000000000000000000000001000000"


def is_loopback(address: str) -> bool:
    """Read an address as the kernel writes it; Docker's own resolver listens on 127.0.0.11."""
    return address == IPV6_LOOPBACK or (len(address) == 8 and address.endswith("7F"))


def is_healthy() -> bool:
    """Look at the sockets of this network namespace, which is the container's own."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, remote, state, *_ = line.split()
            here, there = local.split(":")[0], remote.split(":")[0]
            if (state == LISTENING and not is_loopback(here)) or (state == ESTABLISHED and not is_loopback(there)):
                return True
    return False


sys.exit(0 if is_healthy() else 1)
