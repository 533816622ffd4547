"""HOST:PORT, as people write it: an IPv6 host stands in brackets."""

from __future__ import annotations


def host_and_port(address: str) -> tuple[str, str]:
    """Take an address apart; the port is empty where there is none."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port
