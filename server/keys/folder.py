"""The keys of a federation: who the server is, and who may join it.

    KEYS/ca.crt         the certificate of the federation's own authority
    KEYS/server.crt     the server's certificate, which names the hosts it may be reached at
    KEYS/server.key     the private key that goes with it
    KEYS/address        HOST:PORT, as clients reach the server
    KEYS/clients/       NAME.pub of every client that may join, under that name alone
    KEYS/revoked/       NAME.pub of those that no longer may
    KEYS/bundles/       NAME.join, to be handed to each client and then deleted here
    KEYS/admin/ca.key   the authority's private key: `init`, `add` and `sign` need it, the server never does

A running server looks at clients/ and revoked/ again and again: who is added may join, who is revoked is put out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from common.errors import UserError
from common.program.address import host_and_port
from common.program.bundle import Bundle
from common.program.identity import UNREADABLE, checked_name, load_private_key, new_key, private_pem, public_line
from common.storage.disk import writing
from common.storage.replace import read_small_file, replace_file
from server.keys.certificates import Authority, Certificates, alternative_name
from server.keys.request import Request

DEFAULT_PORT = 9092
AUTHORITY_DAYS = 3650
SERVER_DAYS = 825  # what clients of all kinds still accept

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
        authority = keys._authority() if (folder / "ca.crt").exists() else keys._new_authority()
        key = new_key()
        certificate = authority.for_server(names, key.public_key(), SERVER_DAYS)
        replace_file(folder / "server.key", private_pem(key), secret=True)
        replace_file(folder / "server.crt", certificate.public_bytes(Encoding.PEM))
        host = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
        replace_file(folder / "address", f"{host}:{port}\n".encode())
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

    @property
    def listen(self) -> str:
        """Return where the server listens unless it is told otherwise: everywhere, at the port that clients know."""
        host, port = host_and_port(self.address)
        everywhere = "[::]" if ":" in host else "0.0.0.0"  # noqa: S104 - TLS and keys guard it
        return f"{everywhere}:{port}"

    def certificates(self) -> Certificates:
        """Return what TLS needs on the server's side, still valid."""
        certificate = _read(self.folder / "server.crt")
        try:
            end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        except UNREADABLE as error:
            raise UserError(f"{self.folder / 'server.crt'} is not a certificate: {error}") from None
        if end < datetime.datetime.now(datetime.UTC):
            raise UserError(
                f"the server's certificate has expired on {end:%Y-%m-%d}; "
                f"make a new one: proxskip-server keys init {self.folder} --host HOST"
            )
        return _read(self.folder / "ca.crt"), certificate, _read(self.folder / "server.key")

    def add(self, client: str) -> Path:
        """Make and register a client's key; return the join bundle, which is a secret."""
        key = new_key()
        return self._let_in(checked_name(client), key.public_key(), private_pem(key).decode())

    def sign(self, request: Request) -> Path:
        """Register a key that the client made itself; return the join bundle, which is no secret."""
        client = request.client
        if any(known == request.key for _, known in self.revoked()):
            raise UserError(f"this key was revoked; {client} makes a new one: proxskip-client keys request {client}")
        for name, known in self.clients().items():
            if known == request.key and name != client:
                raise UserError(f"{client} has the same key as {name}: each client needs its own")
        return self._let_in(client, request.key, "")

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

    def _let_in(self, client: str, key: ec.EllipticCurvePublicKey, secret: str) -> Path:
        public = self._clients / f"{client}.pub"
        if public.exists():
            raise UserError(f"{client} has a key already; `keys revoke {client}` first, if it is to get a new one")
        authority = self._authority()
        bundle = Bundle(
            server=self.address,
            client=client,
            authority=_read(self.folder / "ca.crt").decode(),
            certificate=authority.for_client(client, key).public_bytes(Encoding.PEM).decode(),
            key=secret,
        )
        path = self.folder / "bundles" / f"{client}.join"
        replace_file(path, bundle.to_text().encode(), secret=True)
        # The last step: from now on the client may join.
        replace_file(public, public_line(key) + b"\n")
        return path

    def _new_authority(self) -> Authority:
        authority = Authority.new(AUTHORITY_DAYS)
        replace_file(self._authority_key, private_pem(authority.key), secret=True)
        replace_file(self.folder / "ca.crt", authority.certificate.public_bytes(Encoding.PEM))
        return authority

    def _authority(self) -> Authority:
        """Return the authority, if its private key is on this machine."""
        path = self._authority_key
        try:
            pem = _read(path)
        except UserError as error:
            raise UserError(
                f"{error}; it is the private key of the federation's authority: do this on the machine that has it, "
                f"then copy what is new there (clients/, server.crt, server.key) into {self.folder}"
            ) from None
        try:
            key = load_private_key(pem)
            certificate = x509.load_pem_x509_certificate(_read(self.folder / "ca.crt"))
        except UNREADABLE as error:
            raise UserError(f"{path} or {self.folder / 'ca.crt'} is damaged: {error}") from None
        if certificate.public_key() != key.public_key():
            raise UserError(f"{path} is not the key of {self.folder / 'ca.crt'}, an authority of your own")
        return Authority(certificate, key)

    @property
    def _authority_key(self) -> Path:
        return self.folder / "admin" / "ca.key"

    @property
    def _clients(self) -> Path:
        return self.folder / "clients"

    @property
    def _revoked(self) -> Path:
        return self.folder / "revoked"


def public_bytes(key: CertificatePublicKeyTypes) -> bytes:
    """Return a public key as bytes (DER, SubjectPublicKeyInfo): of one key always the same."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def public_bytes_of_certificate(pem: bytes) -> bytes:
    """Return the same of the key that a certificate is for; a ValueError if it is no certificate."""
    try:
        return public_bytes(x509.load_pem_x509_certificate(pem).public_key())
    except UNREADABLE as error:
        raise ValueError(f"it is no certificate that can be read: {error}") from None


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
    except UNREADABLE as error:
        raise UserError(f"{path} is not a public key in OpenSSH form: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{path} is not an elliptic-curve key, as `keys add` and `keys sign` register them")
    return key


def _read(path: Path) -> bytes:
    try:
        return read_small_file(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
