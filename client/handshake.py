"""Find out why a server cannot be talked to: gRPC only says that it is not there."""

from __future__ import annotations

import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.link import Link
from common.program.address import host_and_port

SECONDS = 5.0
PAUSE_SECONDS = 0.5
PROOF_OF_NOTHING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # only to see whether somebody speaks TLS at all
PROOF_OF_NOTHING.check_hostname = False
PROOF_OF_NOTHING.verify_mode = ssl.CERT_NONE

WORDS = {  # of gRPC, and ours
    "Connection refused": "nobody listens there yet",
    "Domain name not found": "its name cannot be resolved",
    "Socket closed": "the connection is closed",
}


def in_words(details: str) -> str:
    """Return what gRPC says of a connection as an operator would: the last of its reasons is the one."""
    reason = details.rpartition(": ")[2].strip(" ]).") or "no reason given"
    return WORDS.get(reason, reason)


def what_is_wrong(link: Link) -> str | None:
    """Return why this client and the server that a link leads to will never understand each other."""
    try:
        return _wrong_in_the_clear(link) if link.root_certificates is None else _wrong_with_tls(link)
    except (OSError, ValueError):  # it cannot be reached, which may change
        return None


def _wrong_with_tls(link: Link) -> str | None:
    try:
        if not _is_refused(link, _context(link)):
            return None
    except ssl.SSLCertVerificationError as error:
        return (
            f"its certificate is not good for this join bundle: {error.verify_message}. Is it the right server? "
            "Then its operator renews the certificate (`proxskip-server keys init`), or makes a new bundle (`keys add`)"
        )
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return "it does not speak TLS: it was started with --insecure, or it is another program"
        return None
    if link.certificate is None:
        return "it lets in only who has a certificate: join with a bundle, which its operator makes with `keys add`"
    return (
        "it refuses this client's certificate: another authority has signed that, or by the server's clock it has "
        "expired. Its operator makes a new bundle (`proxskip-server keys revoke NAME`, then `keys add` or `keys sign`)"
    )


def _wrong_in_the_clear(link: Link) -> str | None:
    try:
        with _tls(link, PROOF_OF_NOTHING):
            pass
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):  # which only TLS has
            return None
    return "it speaks TLS: join with a bundle, which its operator makes with `proxskip-server keys add`"


def _is_refused(link: Link, context: ssl.SSLContext) -> bool:
    """Return whether the server hangs up as soon as it knows who we are; one that ends does so too, but not twice."""
    for _ in range(2):
        if _says_something(link, context):
            return False
        time.sleep(PAUSE_SECONDS)
    return True


def _says_something(link: Link, context: ssl.SSLContext) -> bool:
    """Return whether the server speaks first, as HTTP/2 has it, or hangs up.

    In TLS 1.3 a server sees the client's certificate only after the client's half of the handshake: what it thinks of
    it shows at the first read. gRPC's hangs up without a word, others send an alert.
    """
    try:
        with _tls(link, context) as connection:
            try:
                return bool(connection.recv(1))
            except ConnectionResetError:
                return False
    except ssl.SSLError as error:
        if _is_about_us(error):
            return False
        raise


def _is_about_us(error: ssl.SSLError) -> bool:
    """Return whether an error is the server's alert that it does not like our certificate, or that we have none."""
    reason = error.reason or ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def _context(link: Link) -> ssl.SSLContext:
    """Return what the link itself would do: who the server must be, and who we are."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])  # without it gRPC hangs up on everybody
    context.load_verify_locations(cadata=(link.root_certificates or b"").decode())
    if link.certificate is not None and link.private_key is not None:
        # The standard library takes a key from a file only: this one is nobody else's, and gone at once.
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "client.pem"
            file.write_bytes(link.private_key + link.certificate)
            context.load_cert_chain(file)
    return context


@contextmanager
def _tls(link: Link, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    place, port = host_and_port(link.address)
    with (
        socket.create_connection((place, int(port)), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=link.host) as connection,
    ):
        yield connection
