"""The keys of a federation: who the server is, and who may join it.

    KEYS/ca.crt         the certificate of the federation's own authority
    KEYS/server.crt     the server's certificate, which names the hosts it may be reached at
    KEYS/server.key     the private key that goes with it
    KEYS/address        HOST:PORT, as clients reach the server
    KEYS/clients/       NAME.pub of every client that may join, under that name alone
    KEYS/revoked/       NAME.pub of those that no longer may
    KEYS/bundles/       NAME.join, to be handed to each client and then deleted here
    KEYS/admin/ca.key   the authority's private key: `init` needs it to renew server.crt, the server never does

A running server looks at clients/ and revoked/ again and again: who is added may join, who is revoked is put out.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)

from common.errors import UserError
from common.program.bundle import Bundle
from common.storage.disk import writing
from server.keys.certificates import Certificates, alternative_name, certificate, common_name, pem

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825  # what clients of all kinds still accept
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

PublicKeys = dict[str, ec.EllipticCurvePublicKey]
Complain = Callable[[str], None]


@dataclass(frozen=True)
class Keys:
    """The folder of a federation's keys."""

    folder: Path

    @classmethod
    def init(cls, folder: Path, hosts: Sequence[str], port: int) -> Keys:
        """Make an authority and a server's certificate; where there is an authority, a new certificate only."""
        if not hosts:
            raise UserError("say with --host by which name or address clients reach the server, such as 192.168.0.10")
        names = [alternative_name(host) for host in hosts]
        keys = cls(folder)
        authority_key_file = folder / "admin" / "ca.key"
        if (folder / "ca.crt").exists():
            authority_key = _load_private(authority_key_file)
            authority = x509.load_pem_x509_certificate(_read(folder / "ca.crt"))
            if authority.public_key() != authority_key.public_key():
                raise UserError(f"{authority_key_file} is not the key of {folder / 'ca.crt'}, an authority of your own")
        else:
            authority_key = ec.generate_private_key(ec.SECP384R1())
            authority = certificate(common_name("federation"), None, authority_key, authority_key, AUTHORITY_DAYS)
            _write(authority_key_file, pem(authority_key), secret=True)
            _write(folder / "ca.crt", authority.public_bytes(Encoding.PEM))
        server_key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName(names)
        server = certificate(authority.subject, alternatives, server_key, authority_key, SERVER_DAYS)
        _write(folder / "server.key", pem(server_key), secret=True)
        _write(folder / "server.crt", server.public_bytes(Encoding.PEM))
        host = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
        _write(folder / "address", f"{host}:{port}\n".encode())
        keys._clients.mkdir(exist_ok=True)
        return keys

    @classmethod
    def open(cls, folder: Path) -> Keys:
        """Take a folder that `init` made."""
        if not (folder / "ca.crt").is_file():
            raise UserError(
                f"{folder} holds no keys of a federation; make them: proxskip-server keys init {folder} --host HOST"
            )
        return cls(folder)

    @property
    def address(self) -> str:
        """Return HOST:PORT, as clients reach the server."""
        return _read(self.folder / "address").decode().strip()

    def certificates(self) -> Certificates:
        """Return what TLS needs on the server's side, still valid."""
        certificate = _read(self.folder / "server.crt")
        try:
            end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        except ValueError as error:
            raise UserError(f"{self.folder / 'server.crt'} is not a certificate: {error}") from None
        if end < datetime.datetime.now(datetime.UTC):
            raise UserError(
                f"the server's certificate has expired on {end:%Y-%m-%d}; "
                f"make a new one: proxskip-server keys init {self.folder} --host HOST"
            )
        return _read(self.folder / "ca.crt"), certificate, _read(self.folder / "server.key")

    def add(self, client: str) -> Path:
        """Make and register a client's key; return the join bundle."""
        if not NAME.fullmatch(client):
            raise UserError(f"{client!r} is no name for a client: letters, digits and . _ - (at most 100)")
        public = self._clients / f"{client}.pub"
        if public.exists():
            raise UserError(f"{client} has a key already; `keys revoke {client}` first, if it is to get a new one")
        key = ec.generate_private_key(ec.SECP384R1())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
        authority = _read(self.folder / "ca.crt").decode()
        bundle = Bundle(server=self.address, client=client, authority=authority, key=secret)
        path = self.folder / "bundles" / f"{client}.join"
        _write(path, bundle.to_text().encode(), secret=True)
        # The last step: from now on the client may join.
        _write(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
        return path

    def revoke(self, client: str) -> None:
        """Let a client in no more."""
        public = self._clients / f"{client}.pub"
        if not public.exists():
            known = ", ".join(self.clients()) or "none"
            raise UserError(f"there is no key of {client} in {self._clients}; known: {known}")
        number = len(list(self._revoked.glob("*.pub"))) if self._revoked.exists() else 0
        target = self._revoked / f"{client}.{number}.pub"  # a name may have had several keys
        with writing(target):
            self._revoked.mkdir(exist_ok=True)
            public.replace(target)
            (self.folder / "bundles" / f"{client}.join").unlink(missing_ok=True)

    def clients(self, complain: Complain | None = None) -> PublicKeys:
        """Return the keys of those who may join, by name; refuse, or complain of, what is no key."""
        if not self._clients.is_dir():
            raise UserError(f"there is no folder {self._clients}")
        return dict(_load_all(self._clients, complain))

    def revoked(self, complain: Complain | None = None) -> list[tuple[str, ec.EllipticCurvePublicKey]]:
        """Return the names and keys that no longer may."""
        return [(name.rpartition(".")[0], key) for name, key in _load_all(self._revoked, complain)]

    @property
    def _clients(self) -> Path:
        return self.folder / "clients"

    @property
    def _revoked(self) -> Path:
        return self.folder / "revoked"


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Replace a file; of a secret nobody else on this machine may read anything, not even for a moment."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if secret else 0o777)
        draft = path.with_name(f"{path.name}.new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666)
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(content)
        draft.replace(path)


def _load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(_read(path), None)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not a private key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is not an elliptic-curve key, as `keys init` makes them")
    return key


def _load_all(folder: Path, complain: Complain | None) -> Iterator[tuple[str, ec.EllipticCurvePublicKey]]:
    for path in sorted(folder.glob("*.pub")):
        try:
            yield path.stem, _load_public(path)
        except UserError as error:
            if complain is None:
                raise
            complain(str(error))


def _load_public(path: Path) -> ec.EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path} is not a public key in OpenSSH form: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{path} is not an elliptic-curve key; make one with ssh-keygen -t ecdsa -b 384")
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
