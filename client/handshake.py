"""Find out why a server cannot be talked to: gRPC only says that it is not there."""

from __future__ import annotations

import socket
import ssl

from common.program.address import host_and_port

SECONDS = 5.0
PROOF_OF_NOTHING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # only to see whether somebody speaks TLS at all
PROOF_OF_NOTHING.check_hostname = False
PROOF_OF_NOTHING.verify_mode = ssl.CERT_NONE


def what_is_wrong(address: str, host: str, authority: bytes | None) -> str | None:
    """Return why this client and the server at an address, which must be `host`, will never understand each other."""
    try:
        if authority is None:
            return _wrong_in_the_clear(address)
        return _wrong_with_tls(address, host, authority)
    except (OSError, ValueError):  # it cannot be reached, which may change
        return None


def _wrong_with_tls(address: str, host: str, authority: bytes) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.decode())
    try:
        _greet(address, host, context)
    except ssl.SSLCertVerificationError as error:
        return (
            f"its certificate is not good for this join bundle: {error.verify_message}. Is it the right server? "
            "Then its operator renews the certificate (`proxskip-server keys init`), or makes a new bundle (`keys add`)"
        )
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return "it does not speak TLS: it was started with --insecure, or it is another program"
    return None


def _wrong_in_the_clear(address: str) -> str | None:
    try:
        _greet(address, "", PROOF_OF_NOTHING)
    except ssl.SSLError:
        return None
    return "it speaks TLS: join with a bundle, which its operator makes with `proxskip-server keys add`"


def _greet(address: str, host: str, context: ssl.SSLContext) -> None:
    place, port = host_and_port(address)
    with (
        socket.create_connection((place, int(port)), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host or None),
    ):
        pass
