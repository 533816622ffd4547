"""Who is let in: certificates, keys and bundles, over real TLS, with real processes."""

from __future__ import annotations

import datetime
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from flwr.proto import fleet_pb2
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

from client.app import make_app, participant_of
from client.link import Link
from client.node import Connection, ResidentNode
from common.errors import UserError
from common.experiment.files import load_experiment
from common.program.bundle import Bundle
from server.keys import certificates
from server.keys import folder as keys_module
from server.keys.folder import Keys
from server.link.admission import Admission
from server.link.hub import Hub
from tests.harness.processes import client_process, deploy, wait_until


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.init(tmp_path / "keys", ["127.0.0.1", "server.example"], 9092)


def link_state() -> LinkState:
    return get_objectstore_linkstate_factories(FLWR_IN_MEMORY_DB_NAME, get_federation_manager())[1].state()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_for_their_owner_alone(keys: Keys) -> None:
    bundle = keys.add("client-0")
    assert mode_of(bundle) == mode_of(keys.folder / "server.key") == mode_of(keys.folder / "admin" / "ca.key") == 0o600
    assert mode_of(keys.folder / "admin") == mode_of(bundle.parent) == 0o700
    assert "PRIVATE" not in (keys.folder / "clients" / "client-0.pub").read_text()


def test_a_bundle_says_all_that_a_client_needs(keys: Keys) -> None:
    bundle = Bundle.read(keys.add("client-0"))
    assert (bundle.server, bundle.client) == ("127.0.0.1:9092", "client-0")
    assert bundle.authority == (keys.folder / "ca.crt").read_text()
    assert bundle.private_key().public_key() == keys.clients()["client-0"]


def test_the_certificate_names_all_hosts_and_is_renewed_without_new_bundles(keys: Keys) -> None:
    before = Bundle.read(keys.add("client-0"))
    again = Keys.init(keys.folder, ["fe80::1", "other.example"], 7000)
    certificate = x509.load_pem_x509_certificate(again.certificates()[1])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["fe80::1", "other.example"]
    assert again.address == "[fe80::1]:7000"
    assert again.certificates()[0].decode() == before.authority
    assert list(again.clients()) == ["client-0"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(again.certificates()[0]))


def test_a_revoked_name_can_get_a_new_key(keys: Keys) -> None:
    old = Bundle.read(keys.add("client-0"))
    with pytest.raises(UserError, match="has a key already"):
        keys.add("client-0")
    keys.revoke("client-0")
    assert not keys.clients()
    new = Bundle.read(keys.add("client-0"))
    keys.revoke("client-0")
    revoked = [key for name, key in keys.revoked() if name == "client-0"]
    assert revoked == [old.private_key().public_key(), new.private_key().public_key()]
    with pytest.raises(UserError, match="no key of client-0"):
        keys.revoke("client-0")


@pytest.mark.parametrize("name", ["1", "yes", "null", "2024-01-01"])
def test_a_name_that_yaml_would_read_as_something_else_stays_a_name(keys: Keys, name: str) -> None:
    assert Bundle.read(keys.add(name)).client == name


def test_a_bundle_for_a_server_at_an_ipv6_address(tmp_path: Path) -> None:
    assert Bundle.read(Keys.init(tmp_path, ["::1"], 9092).add("a")).server == "[::1]:9092"


def test_a_file_that_is_no_key_does_not_stop_revocations(keys: Keys) -> None:
    said: list[str] = []
    keys.add("client-0")
    keys.add("client-1")
    admission = Admission(link_state(), keys, said.append)
    (keys.folder / "clients" / "broken.pub").write_text("no key")
    keys.revoke("client-0")
    admission.update()
    admission.update()
    assert len(said) == 2
    assert any("broken.pub is not a public key" in line for line in said)
    assert any("the key of client-0 was revoked" in line for line in said)


def test_without_its_folder_the_server_puts_nobody_out(keys: Keys) -> None:
    said: list[str] = []
    keys.add("client-0")
    admission = Admission(link_state(), keys, said.append)
    (keys.folder / "clients").rename(keys.folder / "elsewhere")
    admission.update()
    assert said == [f"there is no folder {keys.folder / 'clients'}"]


def test_nobody_can_speak_for_a_key_that_it_does_not_sign_with(keys: Keys) -> None:
    """A stranger who knows a client's public key, which is no secret, cannot take its place."""
    victim = public_key_to_bytes(Bundle.read(keys.add("client-0")).private_key().public_key())
    own = Bundle.read(Keys.init(keys.folder.parent / "foreign", ["127.0.0.1"], 1).add("stranger"))
    with Hub("127.0.0.1:0", keys, print) as hub:
        link = Link.of_bundle(replace(own, authority=(keys.folder / "ca.crt").read_text()), hub.address)
        connection = Connection(link)
        request = fleet_pb2.ActivateNodeRequest(public_key=victim, heartbeat_interval=30)
        with pytest.raises(grpc.RpcError, match="not signed with the key that it is about"):
            connection._ask("ActivateNode", request)
        connection.close()


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "a" * 101])
def test_a_name_that_is_no_files_name_is_refused(keys: Keys, name: str) -> None:
    with pytest.raises(UserError, match="no name for a client"):
        keys.add(name)


def test_an_expired_certificate_is_said_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "SERVER_DAYS", -1)
    monkeypatch.setattr(certificates, "CLOCKS_DIFFER", datetime.timedelta(days=2))
    expired = Keys.init(tmp_path / "keys", ["127.0.0.1"], 9092)
    with pytest.raises(UserError, match="has expired on"):
        Hub("127.0.0.1:0", expired)


class _AnyTime(Keys):
    """Keys of an operator who does not look at the dates."""

    def certificates(self) -> tuple[bytes, bytes, bytes]:
        return tuple((self.folder / name).read_bytes() for name in ("ca.crt", "server.crt", "server.key"))  # type: ignore[return-value]


@contextmanager
def refused(arguments: tuple[str, ...], reason: str, log: Path) -> Iterator[None]:
    """Expect a client to give up at once, with one clear line."""
    with client_process(*arguments, log=log) as process:
        yield
        assert process.wait(60) == 2, log.read_text()
    said = log.read_text()
    assert reason in said
    assert "Traceback" not in said


def test_only_those_with_a_good_key_get_in(keys: Keys, tmp_path: Path) -> None:
    """A stranger's key, a revoked key, another authority, no TLS, another's name: each refused, and the run goes on."""
    said: list[str] = []
    bundles = [keys.add(f"client-{index}") for index in range(4)]
    foreign = Keys.init(tmp_path / "foreign", ["127.0.0.1"], 9092)
    stranger = foreign.add("client-0")
    # The stranger knows our authority's certificate, which is no secret, but not its key.
    mixed = Bundle.read(stranger)
    known = Bundle(server=mixed.server, client="client-0", key=mixed.key, authority=Bundle.read(bundles[0]).authority)
    unregistered = tmp_path / "unregistered.join"
    unregistered.write_text(known.to_text())
    kept = shutil.copy(bundles[3], tmp_path / "kept.join")
    keys.revoke("client-3")
    with Hub("127.0.0.1:0", keys, said.append) as hub:
        at, part = ("--server", hub.address), ("--partition", "0/2")
        with (
            refused((str(unregistered), *at, *part), "it is not among the keys", tmp_path / "unregistered.log"),
            refused((str(kept), *at, *part), "the key of client-3 was revoked", tmp_path / "revoked.log"),
            refused((str(stranger), *at, *part), "its certificate is not good for this", tmp_path / "ca.log"),
            refused((hub.address, "--insecure", *part), "it speaks TLS", tmp_path / "plain.log"),
        ):
            pass
        assert sum("its key is not one of ours" in line for line in said) == 1
        assert sum("the key of client-3 was revoked" in line for line in said) == 1
        with (
            client_process(str(bundles[0]), *at, *part, log=tmp_path / "0.log"),
            client_process(str(bundles[1]), *at, "--partition", "1/2", log=tmp_path / "1.log"),
            impostor(Bundle.read(bundles[2]), hub.address) as heard,
        ):
            run = deploy(hub, load_experiment("digits", ["clients=2", "rounds=30"]))
            assert run.counted == [2] * 30
            wait_until(lambda: any("the key of client-2 does not go with the name client-0" in one for one in heard))


class impostor:  # noqa: N801 - used like a function
    """A client with a good key, in this process, that calls itself by another's name."""

    def __init__(self, bundle: Bundle, address: str) -> None:
        self.heard: list[str] = []
        config: dict[str, bool | float | int | str] = {"name": "client-0", "partition": "0/2", "data": "", "state": ""}
        app = make_app(participant_of, self.heard.append)
        self._node = ResidentNode(Link.of_bundle(bundle, address), app, config, self.heard.append)
        self._thread = threading.Thread(target=self._node.run)

    def __enter__(self) -> list[str]:
        self._thread.start()
        return self.heard

    def __exit__(self, *_: object) -> None:
        self._node.stop()
        self._thread.join(20)


def test_who_is_added_may_join_a_running_server_and_who_is_revoked_is_put_out(keys: Keys, tmp_path: Path) -> None:
    said: list[str] = []
    first = keys.add("client-0")
    with Hub("127.0.0.1:0", keys, said.append) as hub:
        second, log = keys.add("client-1"), tmp_path / "1.log"
        with (
            client_process(str(first), "--server", hub.address, "--partition", "0/2", log=tmp_path / "0.log"),
            client_process(str(second), "--server", hub.address, "--partition", "1/2", log=log) as put_out,
        ):
            deploy(hub, load_experiment("digits", ["clients=2", "rounds=3"]))
            keys.revoke("client-1")
            assert put_out.wait(60) == 2
        assert "the key of client-1 was revoked" in log.read_text()
        assert any("the key of client-1 was revoked: it is put out" in line for line in said)


def test_a_server_at_another_address_than_its_certificate_names_is_refused(keys: Keys, tmp_path: Path) -> None:
    bundle = keys.add("client-0")
    Keys.init(keys.folder, ["192.0.2.1"], 9092)
    with Hub("127.0.0.1:0", keys, print) as hub:
        arguments = (str(bundle), "--server", hub.address, "--partition", "0/2")
        with refused(arguments, "IP address mismatch", tmp_path / "wrong.log"):
            pass


@pytest.mark.parametrize("host", ["192.0.2.1", "server.example"])
def test_a_server_behind_a_tunnel_is_known_by_the_name_in_the_bundle(host: str, tmp_path: Path) -> None:
    keys, log = Keys.init(tmp_path / "keys", [host], 9092), tmp_path / "client.log"
    bundle = keys.add("client-0")
    with (
        Hub("127.0.0.1:0", keys, print) as hub,
        client_process(str(bundle), "--server", hub.address, "--partition", "0/2", log=log),
    ):
        wait_until(lambda: "joined the server" in log.read_text())


def test_a_server_with_an_expired_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "SERVER_DAYS", -1)
    monkeypatch.setattr(certificates, "CLOCKS_DIFFER", datetime.timedelta(days=2))
    keys = _AnyTime(Keys.init(tmp_path / "keys", ["127.0.0.1"], 9092).folder)
    bundle = keys.add("client-0")
    with Hub("127.0.0.1:0", keys, print) as hub:
        arguments = (str(bundle), "--server", hub.address, "--partition", "0/2")
        with refused(arguments, "certificate has expired", tmp_path / "wrong.log"):
            pass


def test_a_server_without_tls_is_refused_by_who_has_a_bundle(keys: Keys, tmp_path: Path) -> None:
    bundle = keys.add("client-0")
    with Hub("127.0.0.1:0") as hub:
        arguments = (str(bundle), "--server", hub.address, "--partition", "0/2")
        with refused(arguments, "it does not speak TLS", tmp_path / "client.log"):
            pass
