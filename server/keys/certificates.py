"""Certificates of a federation: its own authority's, and the server's, which that signs."""

from __future__ import annotations

import datetime
import ipaddress
import re

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from common.errors import UserError

CLOCKS_DIFFER = datetime.timedelta(hours=1)
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")

Certificates = tuple[bytes, bytes, bytes]  # of the authority, of the server, the server's private key


def certificate(
    issuer: x509.Name,
    alternatives: x509.SubjectAlternativeName | None,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    """Sign a certificate: the authority's own, or one for the names of a server."""
    now = datetime.datetime.now(datetime.UTC)
    is_authority = alternatives is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(issuer if is_authority else common_name("server"))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if alternatives is not None:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(alternatives, critical=False).add_extension(usage, critical=False)
    return builder.sign(signer, hashes.SHA384())


def alternative_name(host: str) -> x509.GeneralName:
    """Return a host's name or address as certificates have it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST.fullmatch(host):
        raise UserError(f"--host {host}: expected a host's name or address without a port, such as 192.168.0.10")
    return x509.DNSName(host)


def common_name(text: str) -> x509.Name:
    """Return a name as certificates have it."""
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as a file has it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
