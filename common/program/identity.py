"""Who a client is: its name and its key, and how certificates have both."""

from __future__ import annotations

import base64
import hashlib
import re

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from common.errors import UserError
from common.say import LONGEST_NAME, one_line

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a certificate has no room for a longer one
CURVES = ("secp256r1", "secp384r1")  # gRPC's TLS takes no other, P-521 neither

# What is raised at bytes that are no key or certificate, or one of a kind that nobody knows.
UNREADABLE = (KeyError, TypeError, ValueError, UnsupportedAlgorithm, x509.InvalidVersion)


def checked_name(name: str) -> str:
    """Return the name of a client, if it can be one: of files, and in certificates."""
    if not NAME.fullmatch(name):
        given = one_line(name, LONGEST_NAME)
        raise UserError(f"{given!r} is no name for a client: letters, digits and . _ - (at most 64)")
    return name


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a key, on the curve that TLS is fastest with."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as a file has it, and as gRPC wants it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load_private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a private key; a ValueError says what is wrong with it."""
    try:
        key = load_pem_private_key(pem, None)
    except UNREADABLE as error:  # such as one that is encrypted
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("it is not on an elliptic curve")
    return key


def public_line(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key in OpenSSH's form."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return what people compare to know that a key is the same, as `ssh-keygen -l` shows it."""
    digest = hashlib.sha256(base64.b64decode(public_line(key).split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def common_name(text: str) -> x509.Name:
    """Return a name as certificates have it."""
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def name_in(subject: x509.Name) -> str:
    """Return the one common name of a certificate's subject; nothing where there is none, or several."""
    found = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""
