"""Certificates of a federation: its own authority's, and those of the server and the clients, which that signs."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from common.errors import UserError
from common.program.identity import common_name

# A clock that has lost its power starts in 1970: no certificate is too young for it, on either side.
VALID_SINCE = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")

Certificates = tuple[bytes, bytes, bytes]  # of the authority, of the server, the server's private key


@dataclass(frozen=True)
class Authority:
    """Who says which server and which clients are of this federation."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, days: int) -> Authority:
        """Make an authority, which vouches for itself."""
        key, name = ec.generate_private_key(ec.SECP384R1()), common_name("federation")
        builder = _builder(name, name, key.public_key(), key.public_key(), _in_days(days), is_authority=True)
        return cls(builder.sign(key, hashes.SHA384()), key)

    def for_server(
        self, names: Sequence[x509.GeneralName], key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.Certificate:
        """Sign that a key is the server's, at these names."""
        builder = self._builder(common_name("server"), key, _in_days(days), ExtendedKeyUsageOID.SERVER_AUTH)
        alternatives = x509.SubjectAlternativeName(names)
        return builder.add_extension(alternatives, critical=False).sign(self.key, hashes.SHA384())

    def for_client(self, client: str, key: ec.EllipticCurvePublicKey) -> x509.Certificate:
        """Sign that a key is a client's, for as long as there is this authority."""
        end = self.certificate.not_valid_after_utc
        builder = self._builder(common_name(client), key, end, ExtendedKeyUsageOID.CLIENT_AUTH)
        return builder.sign(self.key, hashes.SHA384())

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime.datetime, usage: x509.ObjectIdentifier
    ) -> x509.CertificateBuilder:
        issuer, issuer_key = self.certificate.subject, self.key.public_key()
        builder = _builder(subject, issuer, key, issuer_key, end, is_authority=False)
        return builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)


def alternative_name(host: str) -> x509.GeneralName:
    """Return a host's name or address as certificates have it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST.fullmatch(host):
        raise UserError(f"--host {host}: expected a host's name or address without a port, such as 192.168.0.10")
    return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    end: datetime.datetime,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_SINCE)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _in_days(days: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
