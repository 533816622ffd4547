"""Make a client's key where it is used, and the request that the federation's authority signs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from common.errors import UserError
from common.program.identity import checked_name, common_name, fingerprint, new_key, private_pem
from common.storage.replace import replace_file


@dataclass(frozen=True)
class MadeRequest:
    """What was made: a key that stays, a request that goes, and how people tell that it came as it went."""

    key_file: Path
    request_file: Path
    fingerprint: str


def make_request(client: str, folder: Path) -> MadeRequest:
    """Make a key and a request (PKCS#10) in a folder; a key that is there is never replaced."""
    checked_name(client)
    key_file, request_file = folder / f"{client}.key", folder / f"{client}.csr"
    if key_file.exists():
        raise UserError(
            f"{key_file} is there already; move it away if {client} is to get a new key, or say --output DIR"
        )
    key = new_key()
    request = x509.CertificateSigningRequestBuilder().subject_name(common_name(client)).sign(key, hashes.SHA256())
    replace_file(request_file, request.public_bytes(Encoding.PEM))
    # The last step: where it fails, the same command can be given again.
    replace_file(key_file, private_pem(key), secret=True)
    return MadeRequest(key_file, request_file, fingerprint(key.public_key()))
