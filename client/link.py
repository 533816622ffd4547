"""The way to the server, and who a client is to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from client.part import Part, default_name
from common.errors import UserError
from common.program.address import host_and_port
from common.program.bundle import Bundle
from common.program.identity import checked_name


@dataclass(frozen=True, kw_only=True)
class Link:
    """How to reach the server, and who we are to it."""

    address: str
    host: str  # that the server's certificate must name, also where it is reached by another way
    root_certificates: bytes | None  # None: no TLS
    certificate: bytes | None  # that says who we are (PEM), and
    private_key: bytes | None = field(repr=False)  # the key of that (PEM, PKCS8); None: the server takes anybody

    @classmethod
    def of_bundle(cls, bundle: Bundle, address: str | None = None) -> Link:
        """Take what a join bundle says, but for the address where the server is reached by another way."""
        return cls(
            address=_checked(address or bundle.server),
            host=host_and_port(bundle.server)[0],
            root_certificates=bundle.authority.encode(),
            certificate=bundle.certificate.encode(),
            private_key=bundle.key.encode(),
        )

    @classmethod
    def in_the_clear(cls, address: str) -> Link:
        """Talk to a server that takes anybody, for everybody on the way to read."""
        return cls(
            address=_checked(address),
            host=host_and_port(address)[0],
            root_certificates=None,
            certificate=None,
            private_key=None,
        )


Way = tuple[Link, str]  # to the server, and a client's name


def ways_to_server(
    target: str, server: str | None, name: str | None, key: Path | None, parts: Sequence[Part | None], *, insecure: bool
) -> list[Way]:
    """Return the link that the options of `join` ask for, and the name, of each client in this process."""
    several = len(parts) > 1
    if several and (name is not None or key is not None):
        raise UserError("--partitions makes several clients, named client-I; --name and --key are for one")
    if insecure:
        if server is not None or key is not None:
            raise UserError("--server and --key are for a bundle; with --insecure say SERVER:PORT in its place")
        sys.stderr.write("warning: --insecure: whoever is on the way can read and change everything\n")
        link = Link.in_the_clear(target)
        return [(link, checked_name(name or default_name(part))) for part in parts]
    if several:
        files = [Path(target) / f"{default_name(part)}.join" for part in parts]
        return [_by_bundle(file, server, None, None) for file in files]
    return [_by_bundle(Path(target), server, name, key)]


def _by_bundle(file: Path, server: str | None, name: str | None, key: Path | None) -> Way:
    if not file.is_file():
        raise UserError(
            f"there is no join bundle {file}; the server's operator makes one with `proxskip-server keys add NAME` "
            "(or, for a trial on this machine: SERVER:PORT --insecure); --partitions takes a folder of bundles"
        )
    bundle = Bundle.read(file, key)
    if name not in (None, bundle.client):
        raise UserError(f"this bundle is for {bundle.client}: it cannot join as {name}")
    return Link.of_bundle(bundle, server), bundle.client


def _checked(address: str) -> str:
    host, port = host_and_port(address)
    if not host or not port.isdecimal():
        raise UserError(f"{address}: expected SERVER:PORT, such as 192.168.0.10:9092")
    return address
