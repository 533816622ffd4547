"""Several hosts on this machine: network namespaces on a bridge that is in a namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")),
    reason="makes network namespaces: needs root, and ip and tc of iproute2",
)


class Network:
    """Hosts with addresses of their own, each on a link that can be cut."""

    def __init__(self, hosts: int) -> None:
        self._prefix = f"proxskip-{uuid4().hex[:6]}"
        self._switch = f"{self._prefix}-switch"
        self._hosts = range(hosts)

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def on(self, host: int) -> tuple[str, ...]:
        """Return what to put before a command that is to run on a host."""
        return ("ip", "netns", "exec", self._name(host))

    def cut(self, host: int) -> None:
        _ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def heal(self, host: int) -> None:
        _ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def bytes_of(self, host: int) -> tuple[int, int]:
        """Return what has crossed the link of a host so far: down, up."""
        shown = subprocess.run(
            ["ip", "-n", self._name(host), "-s", "-j", "link", "show", "eth0"], check=True, capture_output=True
        )
        counts = json.loads(shown.stdout)[0]["stats64"]
        return counts["rx"]["bytes"], counts["tx"]["bytes"]

    def slow_down(self, host: int, kilobits_a_second: int) -> None:
        """Make the link of a host a slow one, both ways."""
        limit = ("tbf", "rate", f"{kilobits_a_second}kbit", "burst", "2kb", "limit", "1mb")
        for name, device in ((self._name(host), "eth0"), (self._switch, f"port{host}")):
            command = ["tc", "-n", name, "qdisc", "add", "dev", device, "root", *limit]
            subprocess.run(command, check=True, capture_output=True)

    def speed_up(self, host: int) -> None:
        """Make the link of a host as it was."""
        for name, device in ((self._name(host), "eth0"), (self._switch, f"port{host}")):
            command = ["tc", "-n", name, "qdisc", "delete", "dev", device, "root"]
            subprocess.run(command, check=True, capture_output=True)

    def set_up(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge0", "up")
        for host in self._hosts:
            name, port = self._name(host), f"port{host}"
            _ip("netns", "add", name)
            _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", self._switch)
            _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", self._switch, "link", "set", port, "master", "bridge0", "up")

    def take_down(self) -> None:
        for name in [*map(self._name, self._hosts), self._switch]:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def _name(self, host: int) -> str:
        return f"{self._prefix}-{host}"


@contextmanager
def network(hosts: int) -> Iterator[Network]:
    """Set hosts up, and take them down at the end."""
    made = Network(hosts)
    try:
        made.set_up()
        yield made
    finally:
        made.take_down()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
