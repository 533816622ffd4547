"""Who is let in: certificates, keys and bundles, over real TLS, with real processes."""

from __future__ import annotations

import base64
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from click.testing import Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from client.__main__ import app as client_app
from client.link import Link, ways_to_server
from common.errors import UserError
from common.experiment.files import load_experiment
from common.program.bundle import Bundle
from common.program.identity import common_name, load_private_key, new_key, private_pem
from server.__main__ import app as server_app
from server.keys import folder as keys_module
from server.keys.certificates import Authority
from server.keys.folder import Keys, public_bytes, public_bytes_of_certificate
from server.keys.request import LARGEST_BYTES, read_request
from server.link.admission import Admission
from server.link.hub import Hub
from tests.harness.processes import client_process, deploy, wait_until
from tests.harness.raw_stream import RawStream

WRONG_NAMES = ["", "../x", "a b", "-x", "a" * 65]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.init(tmp_path / "keys", ["127.0.0.1", "server.example"], 9092)


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
    assert load_private_key(bundle.key.encode()).public_key() == keys.clients()["client-0"]
    assert public_bytes_of_certificate(bundle.certificate.encode()) == public_bytes(keys.clients()["client-0"])
    assert bundle.key.startswith("-----BEGIN PRIVATE KEY-----")  # gRPC does not read OpenSSH's form


def test_a_clients_certificate_names_it_and_no_clock_is_too_early_for_it(keys: Keys) -> None:
    authority = x509.load_pem_x509_certificate(keys.certificates()[0])
    certificate = x509.load_pem_x509_certificate(Bundle.read(keys.add("client-0")).certificate.encode())
    certificate.verify_directly_issued_by(authority)
    assert certificate.subject.rfc4514_string() == "CN=client-0"
    assert certificate.not_valid_before_utc.year == authority.not_valid_before_utc.year == 1970
    assert certificate.not_valid_after_utc == authority.not_valid_after_utc
    extensions = certificate.extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_what_is_no_certificate_has_no_key() -> None:
    for garbage in (b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(ValueError, match="it is no certificate"):
            public_bytes_of_certificate(garbage)


def test_an_authority_of_ones_own_signs_servers_and_clients(tmp_path: Path) -> None:
    own, folder = Authority.new(100), tmp_path / "keys"
    (folder / "admin").mkdir(parents=True)
    (folder / "ca.crt").write_bytes(own.certificate.public_bytes(Encoding.PEM))
    (folder / "admin" / "ca.key").write_bytes(private_pem(own.key))
    keys = Keys.init(folder, ["127.0.0.1"], 9092)
    for pem in (keys.certificates()[1], Bundle.read(keys.add("client-0")).certificate.encode()):
        x509.load_pem_x509_certificate(pem).verify_directly_issued_by(own.certificate)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "do this on the machine that has it"),
        (b"no key", "is damaged"),
        (private_pem(new_key()), "is not the key of"),
    ],
)
def test_without_the_authoritys_key_nothing_is_signed(keys: Keys, found: bytes | None, reason: str) -> None:
    file = keys.folder / "admin" / "ca.key"
    file.unlink()
    if found is not None:
        file.write_bytes(found)
    with pytest.raises(UserError, match=reason):
        keys.add("client-0")
    with pytest.raises(UserError, match=reason):
        Keys.init(keys.folder, ["127.0.0.1"], 9092)
    assert not keys.clients()
    assert not (keys.folder / "bundles").exists()


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
    revoked = [public_bytes(key) for name, key in keys.revoked() if name == "client-0"]
    assert revoked == [public_bytes_of_certificate(bundle.certificate.encode()) for bundle in (old, new)]
    with pytest.raises(UserError, match="no key of client-0"):
        keys.revoke("client-0")


def say(app: typer.Typer, *arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def said_by(app: typer.Typer, *arguments: str | Path) -> str:
    result = say(app, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refusal_of(app: typer.Typer, *arguments: str | Path) -> str:
    """Return the one line with which a command refuses."""
    error = say(app, *arguments).exception
    assert isinstance(error, UserError), error
    assert "\n" not in str(error)
    return str(error)


def link_of(bundle: Path, key: Path | None = None) -> Link:
    return ways_to_server(str(bundle), None, None, key, [None], insecure=False)[0][0]


def write_request(
    path: Path, names: Sequence[str], key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None
) -> Path:
    """Write a request as somebody may who does not use our program."""
    subject = x509.Name([attribute for name in names for attribute in common_name(name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key or new_key(), hashes.SHA256())
    path.write_bytes(request.public_bytes(Encoding.PEM))
    return path


def test_a_key_that_is_made_on_the_device_stays_there(keys: Keys, tmp_path: Path) -> None:
    device = tmp_path / "device"
    asked = said_by(client_app, "keys", "request", "client-0", "--output", device)
    signed = said_by(server_app, "keys", "sign", device / "client-0.csr", "--keys", keys.folder)
    fingerprint = next(word for word in asked.split() if word.startswith("SHA256:"))
    assert f"{fingerprint}?" in signed
    assert "proxskip-server keys sign client-0.csr" in asked
    assert "no secret" in signed
    assert "proxskip-client join NAME.join" in signed
    key_file, bundle = device / "client-0.key", keys.folder / "bundles" / "client-0.join"
    assert mode_of(key_file) == 0o600
    assert "It is no secret" in bundle.read_text().splitlines()[0]
    secret = key_file.read_text().splitlines()[1]
    assert not [path for path in keys.folder.rglob("*") if path.is_file() and secret in path.read_text()]
    assert list(keys.clients()) == ["client-0"]
    assert "clients: client-0\n" in said_by(server_app, "keys", "list", "--keys", keys.folder)

    by_option, beside = link_of(bundle, key_file), link_of(Path(shutil.copy(bundle, device / "renamed.join")))
    assert by_option == beside
    assert by_option.private_key == key_file.read_bytes()
    assert secret not in repr(by_option) + repr(Bundle.read(bundle, key_file))  # a log may have those
    assert by_option.certificate is not None
    assert public_bytes_of_certificate(by_option.certificate) == public_bytes(keys.clients()["client-0"])


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    said_by(client_app, "keys", "request", "client-0", "--output", tmp_path)
    before = (tmp_path / "client-0.key").read_bytes(), (tmp_path / "client-0.csr").read_bytes()
    assert "is there already" in refusal_of(client_app, "keys", "request", "client-0", "--output", tmp_path)
    assert before == ((tmp_path / "client-0.key").read_bytes(), (tmp_path / "client-0.csr").read_bytes())


@pytest.mark.parametrize("name", [name for name in WRONG_NAMES if not name.startswith("-")])
def test_a_request_for_a_wrong_name_is_neither_made_nor_signed(keys: Keys, name: str, tmp_path: Path) -> None:
    assert "no name for a client" in refusal_of(client_app, "keys", "request", name, "--output", tmp_path / "device")
    assert not (tmp_path / "device").exists()
    if 0 < len(name) <= 64:  # no certificate has another
        file = write_request(tmp_path / "wrong.csr", [name])
        assert "no name for a client" in refusal_of(server_app, "keys", "sign", file, "--keys", keys.folder)


def tampered(path: Path) -> Path:
    """Ask for another name than what was signed, in a request of the same length."""
    write_request(path, ["client-0"])
    content = x509.load_pem_x509_csr(path.read_bytes()).public_bytes(Encoding.DER).replace(b"client-0", b"client-1")
    lines = base64.encodebytes(content).decode()
    path.write_text(f"-----BEGIN CERTIFICATE REQUEST-----\n{lines}-----END CERTIFICATE REQUEST-----\n")
    return path


def padded(path: Path) -> Path:
    write_request(path, ["client-0"])
    path.write_bytes(path.read_bytes() + b"\n" * LARGEST_BYTES)
    return path


def not_a_request(path: Path) -> Path:
    path.write_bytes(private_pem(new_key()))
    return path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (tampered, "it was changed on the way"),
        (padded, "too large for a request"),
        (not_a_request, "not a request that can be signed"),
        (lambda path: path, "No such file"),
        (lambda path: write_request(path, []), "no name for a client"),
        (lambda path: write_request(path, ["client-0", "client-1"]), "no name for a client"),
        (lambda path: write_request(path, ["a"], ec.generate_private_key(ec.SECP256K1())), "neither of the curves"),
        (lambda path: write_request(path, ["a"], ec.generate_private_key(ec.SECP521R1())), "neither of the curves"),
        (lambda path: write_request(path, ["a"], rsa.generate_private_key(65537, 2048)), "neither of the curves"),
    ],
)
def test_a_bad_request_is_refused_and_leaves_nothing(
    keys: Keys, make: Callable[[Path], Path], reason: str, tmp_path: Path
) -> None:
    file = make(tmp_path / "bad.csr")
    assert reason in refusal_of(server_app, "keys", "sign", file, "--keys", keys.folder)
    assert not keys.clients()
    assert not (keys.folder / "bundles").exists()


def test_a_request_of_another_program_on_another_curve_is_signed(keys: Keys, tmp_path: Path) -> None:
    """Such as `openssl req`, with further words in its subject and a key in an older form: only the name is taken."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "clinic"), *common_name("clinic-a")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA384())
    (tmp_path / "theirs.csr").write_bytes(request.public_bytes(Encoding.PEM))
    older_form = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (tmp_path / "theirs.key").write_bytes(older_form)
    link = link_of(keys.sign(read_request(tmp_path / "theirs.csr")), tmp_path / "theirs.key")
    assert link.private_key == private_pem(key)
    assert link.certificate is not None
    assert x509.load_pem_x509_certificate(link.certificate).subject.rfc4514_string() == "CN=clinic-a"


def test_a_key_is_signed_for_one_name_and_never_after_it_was_revoked(keys: Keys, tmp_path: Path) -> None:
    key = new_key()
    first = write_request(tmp_path / "a.csr", ["client-0"], key)
    keys.sign(read_request(first))
    with pytest.raises(UserError, match="client-0 has a key already"):
        keys.sign(read_request(first))
    with pytest.raises(UserError, match="client-1 has the same key as client-0"):
        keys.sign(read_request(write_request(tmp_path / "b.csr", ["client-1"], key)))
    said_by(server_app, "keys", "revoke", "client-0", "--keys", keys.folder)
    assert not (keys.folder / "bundles" / "client-0.join").exists()
    with pytest.raises(UserError, match="this key was revoked"):
        keys.sign(read_request(first))


def test_a_bundle_of_an_older_version_is_refused(keys: Keys, tmp_path: Path) -> None:
    old = tmp_path / "old.join"
    text = keys.add("client-0").read_text()
    before, _, after = text.partition("certificate: ")
    old.write_text(before + after[after.index("key: ") :])
    with pytest.raises(UserError, match=r"older version.*keys revoke client-0.*keys add client-0"):
        link_of(old)


def test_a_bundle_whose_parts_do_not_go_together_is_refused(keys: Keys, tmp_path: Path) -> None:
    mine, other = Bundle.read(keys.add("client-0")), Bundle.read(keys.add("client-1"))
    file = tmp_path / "client-0.join"
    for wrong, reason in (
        (replace(mine, key=other.key), "does not go with the certificate"),
        (replace(mine, key="no key\n"), "cannot be read"),
        (replace(mine, certificate=other.certificate), "it is for client-0, its certificate for 'client-1'"),
        (replace(mine, certificate="no certificate"), "a certificate in it cannot be read"),
        (replace(mine, authority="no certificate"), "a certificate in it cannot be read"),
        (replace(mine, client="../../etc/x"), "no name for a client"),
    ):
        file.write_text(wrong.to_text())
        with pytest.raises(UserError, match=reason):
            link_of(file)


def test_a_bundle_without_a_key_needs_the_one_it_was_made_for(keys: Keys, tmp_path: Path) -> None:
    bundle = keys.sign(read_request(write_request(tmp_path / "a.csr", ["client-0"])))
    with pytest.raises(UserError, match=r"client-0\.key cannot be read .*--key FILE"):
        link_of(bundle)
    other = tmp_path / "other.key"
    other.write_bytes(private_pem(new_key()))
    with pytest.raises(UserError, match=r"other\.key does not go with the certificate .*--key FILE"):
        link_of(bundle, other)
    encrypted = new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    other.write_bytes(encrypted)
    with pytest.raises(UserError, match=r"other\.key cannot be read: .*encrypted"):
        link_of(bundle, other)
    with pytest.raises(UserError, match="leave out --key"):
        link_of(keys.add("client-1"), other)
    assert "--key are for a bundle" in refusal_of(client_app, "join", "host:1", "--insecure", "--key", other)


@pytest.mark.parametrize("name", ["1", "yes", "null", "2024-01-01"])
def test_a_name_that_yaml_would_read_as_something_else_stays_a_name(keys: Keys, name: str) -> None:
    assert Bundle.read(keys.add(name)).client == name


def test_a_bundle_for_a_server_at_an_ipv6_address(tmp_path: Path) -> None:
    assert Bundle.read(Keys.init(tmp_path, ["::1"], 9092).add("a")).server == "[::1]:9092"


def test_a_file_that_is_no_key_does_not_stop_revocations(keys: Keys) -> None:
    said: list[str] = []
    keys.add("client-0")
    keys.add("client-1")
    admission = Admission(keys, said.append)
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
    admission = Admission(keys, said.append)
    (keys.folder / "clients").rename(keys.folder / "elsewhere")
    admission.update()
    assert said == [f"there is no folder {keys.folder / 'clients'}"]


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_name_that_is_no_files_name_is_refused(keys: Keys, name: str) -> None:
    with pytest.raises(UserError, match="no name for a client"):
        keys.add(name)


def test_an_expired_certificate_is_said_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "SERVER_DAYS", -1)
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
    known = replace(mixed, authority=Bundle.read(bundles[0]).authority)
    unregistered = tmp_path / "unregistered.join"
    unregistered.write_text(known.to_text())
    kept, lost = shutil.copy(bundles[3], tmp_path / "kept.join"), keys.add("lost")
    keys.revoke("client-3")
    (keys.folder / "clients" / "lost.pub").unlink()
    with Hub("127.0.0.1:0", keys, said.append) as hub:
        at, part = ("--server", hub.address), ("--partition", "0/2")
        with (
            refused((str(unregistered), *at, *part), "it refuses this client's certificate", tmp_path / "unsigned.log"),
            refused((str(lost), *at, *part), "its key is not among the keys", tmp_path / "lost.log"),
            refused((str(kept), *at, *part), "the key of client-3 was revoked", tmp_path / "revoked.log"),
            refused((str(stranger), *at, *part), "its certificate is not good for this", tmp_path / "ca.log"),
            refused((hub.address, "--insecure", *part), "it speaks TLS", tmp_path / "plain.log"),
        ):
            pass
        assert len([line for line in said if line.startswith("refused a client at")]) == 1  # a minute and a peer
        with (
            client_process(str(bundles[0]), *at, *part, log=tmp_path / "0.log"),
            client_process(str(bundles[1]), *at, "--partition", "1/2", log=tmp_path / "1.log"),
        ):
            run = deploy(hub, load_experiment("digits", ["clients=2", "rounds=30"]))
            assert run.counted == [2] * 30
            with RawStream(Link.of_bundle(Bundle.read(bundles[2]), hub.address)) as impostor:
                answer = impostor.hello("client-0").hear_until("refused").refused
            assert answer.reason == "the key of client-2 does not go with the name client-0"
            assert answer.final


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
