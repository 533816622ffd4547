"""A client's state folder in bad company: others who look in, a second process, names and files that are none."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from client import state_folder
from client.__main__ import app as client_app
from client.memory import MemoryFile
from client.state_folder import identity_of, in_use
from common.errors import UserError
from common.program.bundle import Bundle
from common.rounds.state import ClientMemory
from server.keys.folder import Keys
from server.link.hub import Hub
from tests.harness.processes import client_process, wait_until


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def _open_umask() -> object:
    before = os.umask(0o000)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_umask")
@pytest.mark.parametrize("first", ["identity", "memory"])
def test_what_a_client_leaves_is_for_its_owner_alone(first: str, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    if first == "identity":
        identity_of(folder, "a")
    MemoryFile(folder, "a", "run").save(ClientMemory(control=torch.ones(3)))
    assert mode_of(folder) == 0o700
    assert {mode_of(file) for file in folder.iterdir()} == {0o600}


def test_a_folder_that_others_may_look_into_is_said_and_its_files_are_tightened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = identity_of(tmp_path, "a")
    MemoryFile(tmp_path, "a", "run").save(ClientMemory(control=torch.ones(3)))
    other = tmp_path / "of somebody else"
    other.touch()
    for path in (tmp_path, *tmp_path.iterdir()):
        path.chmod(0o755)
    with in_use(tmp_path, ["a"]):
        assert {mode_of(file) for file in tmp_path.glob("a.*")} == {0o600}
        assert (mode_of(tmp_path), mode_of(other)) == (0o755, 0o755)
    assert f"warning: others on this machine may look into --state {tmp_path}" in capsys.readouterr().err
    tmp_path.chmod(0o700)
    with in_use(tmp_path, ["a"]):
        assert identity_of(tmp_path, "a") == identity
    assert not capsys.readouterr().err


def test_two_processes_cannot_be_the_same_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would write over what the first remembers; when that is killed, its place is free at once."""
    monkeypatch.setattr(state_folder, "LOCK_SECONDS", 0.0)
    log = tmp_path / "first.log"
    with Hub("127.0.0.1:0") as hub:
        options = (hub.address, "--insecure", "--partition", "0/2", "--state", str(tmp_path))
        with client_process(*options, log=log) as first:
            wait_until(lambda: "joined the server" in log.read_text())
            with pytest.raises(UserError, match="another process is client-0"):
                client_app(["join", *options], standalone_mode=False)
            assert first.poll() is None
            first.send_signal(signal.SIGKILL)
            first.wait()
            with in_use(tmp_path, ["client-0"]):
                pass
    with in_use(tmp_path, ["client-0", "client-1"]):
        pass


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/passwd", "a/b", "..", "a\nb", "x" * 65])
def test_a_name_that_leads_elsewhere_is_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no name for a client"):
        client_app(
            ["join", "127.0.0.1:1", "--insecure", "--name", name, "--state", str(tmp_path)], standalone_mode=False
        )
    assert not list(tmp_path.parent.glob("elsewhere*"))


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 32, b"0" * 33, b"0" * (2 << 20)])
def test_an_identity_that_is_none_is_refused_with_a_remedy(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.identity").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.identity"):
        identity_of(tmp_path, "a")


def test_devices_in_the_place_of_small_files_do_no_harm(tmp_path: Path) -> None:
    """They have no end: read whole, they would take all memory."""
    zero = Path("/dev/zero")
    (tmp_path / "a.identity").symlink_to(zero)
    with pytest.raises(UserError, match="cannot read the client's identity"):
        identity_of(tmp_path, "a")
    with pytest.raises(UserError, match="cannot read the client's identity"):
        identity_of(Path("/dev/null"), "a")
    keys = Keys.init(tmp_path / "keys", ["127.0.0.1"], 9092)
    bundle = keys.add("a")
    with pytest.raises(UserError, match="cannot read the join bundle"):
        Bundle.read(zero)
    text = bundle.read_text().partition("key: |")[0]  # as one whose key never left the client's machine
    bundle.write_text(text)
    with pytest.raises(UserError, match="/dev/zero cannot be read"):
        Bundle.read(bundle, zero)


def test_memory_files_that_are_no_files_are_refused(tmp_path: Path) -> None:
    for place in range(2):
        (tmp_path / f"a.memory.{place}").mkdir()
    program = (
        "import sys; from pathlib import Path; import torch; from client.memory import MemoryFile\n"
        "from common.errors import UserError; from common.rounds.state import ClientMemory\n"
        f"memory = MemoryFile(Path({str(tmp_path)!r}), 'a', 'run')\n"
        "try: memory.save(ClientMemory(control=torch.ones(3)))\n"
        "except UserError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "Is a directory" in said.stdout
