"""Why a server cannot be talked to, as a client finds it out: with real servers of gRPC and of the standard library."""

from __future__ import annotations

import socket
import ssl
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from client import handshake
from client.handshake import what_is_wrong
from client.link import Link
from common.program.bundle import Bundle
from server.keys import folder as keys_module
from server.keys.folder import Keys, public_bytes, public_bytes_of_certificate

REFUSED = "it refuses this client's certificate"
NOT_GOOD = "its certificate is not good for this join bundle"


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PAUSE_SECONDS", 0.01)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.init(tmp_path / "keys", ["127.0.0.1"], 9092)


@pytest.fixture
def foreign(tmp_path: Path) -> Keys:
    """Another federation."""
    return Keys.init(tmp_path / "foreign", ["127.0.0.1"], 9092)


class WhoIsThere(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Tells a client who it is to the server."""

    def service(self, _: object) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda _, call: call.auth_context()["x509_pem_cert"][0])


@contextmanager
def grpc_server(keys: Keys | None) -> Iterator[str]:
    """Serve over mutual TLS, or in the clear; yield the address."""
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((WhoIsThere(),))
    if keys is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        authority, certificate, key = (
            (keys.folder / name).read_bytes() for name in ("ca.crt", "server.crt", "server.key")
        )
        credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Do something with every connection, then close it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def openssl_server(keys: Keys, version: ssl.TLSVersion) -> AbstractContextManager[str]:
    """Serve with another TLS library than gRPC's: this one says why it refuses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.folder / "server.crt", keys.folder / "server.key")
    context.load_verify_locations(keys.folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version

    def answer(connection: socket.socket) -> None:
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                secure.send(b"\0")
        except OSError:
            pass

    return raw_server(answer)


def link_of(bundle: Path, address: str) -> Link:
    return Link.of_bundle(Bundle.read(bundle), address)


def stranger(keys: Keys, foreign: Keys, address: str) -> Link:
    """Return the link of a client that knows our authority, which is no secret, but was signed by another."""
    return replace(link_of(foreign.add("client-0"), address), root_certificates=(keys.folder / "ca.crt").read_bytes())


def nobody(keys: Keys, address: str) -> Link:
    """Return a link with TLS, but without a certificate."""
    authority = (keys.folder / "ca.crt").read_bytes()
    return replace(Link.in_the_clear(address), root_certificates=authority)


def test_the_server_knows_who_is_there_by_its_certificate_and_nothing_is_wrong(keys: Keys) -> None:
    with grpc_server(keys) as address:
        link = link_of(keys.add("client-0"), address)
        assert what_is_wrong(link) is None
        credentials = grpc.ssl_channel_credentials(link.root_certificates, link.private_key, link.certificate)
        with grpc.secure_channel(address, credentials) as channel:
            seen = channel.unary_unary("/any/method")(b"", timeout=10)
    assert public_bytes_of_certificate(seen) == public_bytes(keys.clients()["client-0"])


def test_a_client_of_another_authority_is_told_that_it_is_refused(keys: Keys, foreign: Keys) -> None:
    with grpc_server(keys) as address:
        assert REFUSED in str(what_is_wrong(stranger(keys, foreign, address)))


def test_the_servers_own_certificate_does_not_make_a_client(keys: Keys) -> None:
    with grpc_server(keys) as address:
        _, certificate, key = keys.certificates()
        thief = replace(link_of(keys.add("client-0"), address), certificate=certificate, private_key=key)
        assert REFUSED in str(what_is_wrong(thief))


def test_a_client_without_a_certificate_is_told_that_it_needs_one(keys: Keys) -> None:
    with grpc_server(keys) as address:
        assert "it lets in only who has a certificate" in str(what_is_wrong(nobody(keys, address)))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_says_why_it_refuses_is_understood(keys: Keys, foreign: Keys, version: ssl.TLSVersion) -> None:
    with openssl_server(keys, version) as address:
        assert what_is_wrong(link_of(keys.add("client-0"), address)) is None
        assert REFUSED in str(what_is_wrong(stranger(keys, foreign, address)))
        assert "it speaks TLS" in str(what_is_wrong(Link.in_the_clear(address)))


def test_a_server_of_another_federation_is_refused_by_the_client(keys: Keys, foreign: Keys) -> None:
    with grpc_server(foreign) as address:
        assert NOT_GOOD in str(what_is_wrong(link_of(keys.add("client-0"), address)))


def test_a_server_with_another_name_is_refused_by_the_client(keys: Keys) -> None:
    bundle = keys.add("client-0")
    Keys.init(keys.folder, ["192.0.2.1"], 9092)
    with grpc_server(keys) as address:
        wrong = str(what_is_wrong(link_of(bundle, address)))
    assert NOT_GOOD in wrong
    assert "IP address mismatch" in wrong


def test_a_server_with_an_expired_certificate_is_refused_by_the_client(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "SERVER_DAYS", -1)
    Keys.init(keys.folder, ["127.0.0.1"], 9092)
    with grpc_server(keys) as address:
        assert "certificate has expired" in str(what_is_wrong(link_of(keys.add("client-0"), address)))


def test_a_server_without_tls_is_told_from_one_with_it(keys: Keys) -> None:
    bundle = keys.add("client-0")
    with grpc_server(None) as in_the_clear, grpc_server(keys) as with_tls:
        assert "it does not speak TLS" in str(what_is_wrong(link_of(bundle, in_the_clear)))
        assert "it speaks TLS" in str(what_is_wrong(Link.in_the_clear(with_tls)))
        assert what_is_wrong(Link.in_the_clear(in_the_clear)) is None


def test_a_server_that_is_not_there_or_hangs_up_may_come_back(keys: Keys) -> None:
    bundle = keys.add("client-0")
    with raw_server(lambda connection: None) as address:
        assert what_is_wrong(link_of(bundle, address)) is None
        assert what_is_wrong(Link.in_the_clear(address)) is None
    assert what_is_wrong(link_of(bundle, address)) is None


def test_a_server_that_ends_in_mid_handshake_does_not_refuse_us(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs up once, as one that refuses us does; then it is up again."""
    answers = iter([False, True])
    monkeypatch.setattr(handshake, "_says_something", lambda *_: next(answers))
    assert what_is_wrong(link_of(keys.add("client-0"), "127.0.0.1:1")) is None


def test_the_key_is_in_a_file_of_nobody_else_and_only_for_a_moment(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Watched(tempfile.TemporaryDirectory[str]):
        def __enter__(self) -> str:
            seen.append(stat.S_IMODE(Path(self.name).stat().st_mode))
            return super().__enter__()

    monkeypatch.setattr(tempfile, "TemporaryDirectory", Watched)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    with grpc_server(keys) as address:
        assert what_is_wrong(link_of(keys.add("client-0"), address)) is None
    assert seen == [0o700]
    assert set(tmp_path.iterdir()) == before
