"""Downloads over a real socket on loopback, and what is said when they fail."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import UserError
from common.learning.data import DataFolder, download

CONTENT = b"some bytes of a data set" * 10_000


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:1000] if self.path == "/short" else CONTENT)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def expected(tmp_path: Path) -> str:
    path = tmp_path / "original"
    path.write_bytes(CONTENT)
    return sha256(path)


def test_a_download_is_checked_and_kept(home: str, expected: str, tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "cache", may_download=True)
    path = folder.file("set.bin", home=f"{home}/set.bin", checksum=sha256, expected=expected)
    assert path.read_bytes() == CONTENT
    path.write_bytes(b"here already")
    assert folder.file("set.bin", home="http://127.0.0.1:1/", checksum=sha256, expected=expected) == path


@pytest.mark.parametrize(
    ("place", "complaint"),
    [("/set.bin", "unexpected file"), ("/short", "ended after 1000 of"), ("/missing", "404")],
)
def test_a_bad_download_leaves_nothing(home: str, place: str, complaint: str, tmp_path: Path) -> None:
    target = tmp_path / "set.bin"
    with pytest.raises(UserError, match=complaint):
        download(home + place, target, checksum=sha256, expected="another")
    assert list(tmp_path.iterdir()) == []


def test_no_network_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"set\.bin is not in .* --data DIR or PROXSKIP_DATA"):
        download("http://127.0.0.1:1/set.bin", tmp_path / "set.bin", checksum=sha256, expected="")


def test_a_users_folder_is_never_downloaded_to(tmp_path: Path) -> None:
    folder = DataFolder.choose(tmp_path)
    with pytest.raises(UserError, match=r"set\.bin is not in the data folder .*download it from http://home"):
        folder.file("set.bin", home="http://home", checksum=sha256, expected="")


def test_the_folder_is_chosen_by_option_then_environment_then_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "option").mkdir()
    (tmp_path / "environment").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PROXSKIP_DATA", raising=False)
    assert DataFolder.choose(None) == DataFolder(tmp_path / "cache" / "proxskip", may_download=True)
    monkeypatch.setenv("PROXSKIP_DATA", str(tmp_path / "environment"))
    assert DataFolder.choose(None) == DataFolder(tmp_path / "environment", may_download=False)
    assert DataFolder.choose(tmp_path / "option").path == tmp_path / "option"
    monkeypatch.setenv("PROXSKIP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"PROXSKIP_DATA: the data folder .*nowhere does not exist"):
        DataFolder.choose(None)
