"""A client's request for a certificate, as `proxskip-client keys request` makes it: nothing in it is trusted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from common.errors import UserError
from common.program.identity import CURVES, UNREADABLE, checked_name, name_in

LARGEST_BYTES = 10_000  # many times what a request has


@dataclass(frozen=True)
class Request:
    """Who wants to join, and the key that goes with it."""

    client: str
    key: ec.EllipticCurvePublicKey


def read_request(path: Path) -> Request:
    """Read a request, and see that who made it has the private key, and a name that a client may have."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > LARGEST_BYTES:
        raise UserError(f"{path} is too large for a request: more than {LARGEST_BYTES} bytes")
    try:
        return _checked(content)
    except (UserError, *UNREADABLE) as error:
        raise UserError(
            f"{path} is not a request that can be signed: {error}; the client makes a new one: "
            "proxskip-client keys request NAME"
        ) from None


def _checked(content: bytes) -> Request:
    request = x509.load_pem_x509_csr(content)
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise ValueError("its key is on neither of the curves P-256 and P-384")
    if not request.is_signature_valid:
        raise ValueError("it is not signed with its own key, or it was changed on the way")
    return Request(checked_name(name_in(request.subject)), key)
