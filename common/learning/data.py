"""Where data sets come from: a folder of the user's, or their public home by way of a cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError

ENVIRONMENT_VARIABLE = "PROXSKIP_DATA"
DOWNLOADED_AT_ONCE_BYTES = 1 << 16
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class DataFolder:
    """A folder with data sets; the user's own is only read, the cache is filled by downloads."""

    path: Path
    may_download: bool

    @classmethod
    def choose(cls, given: Path | None) -> DataFolder:
        """Take what --data says, else the environment variable, else the cache."""
        named = given or (Path(os.environ[ENVIRONMENT_VARIABLE]) if os.environ.get(ENVIRONMENT_VARIABLE) else None)
        if named is None:
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            return cls(cache / "proxskip", may_download=True)
        if not named.is_dir():
            origin = "--data" if given else ENVIRONMENT_VARIABLE
            raise UserError(f"{origin}: the data folder {named} does not exist")
        return cls(named, may_download=False)

    def file(self, name: str, *, home: str, checksum: Callable[[Path], str], expected: str) -> Path:
        """Return the path of a file, fetched from its public home if this folder is the cache."""
        path = self.path / name
        if path.is_file():
            return path
        if not self.may_download:
            raise self.missing(name, f"download it from {home}")
        download(home, path, checksum=checksum, expected=expected)
        return path

    def missing(self, what: str, remedy: str) -> UserError:
        """Return the error that says what is not here and how to get it."""
        return UserError(
            f"{what} is not in the data folder {self.path}; {remedy}", public=f"{what} is not in its data folder"
        )


def download(url: str, path: Path, *, checksum: Callable[[Path], str], expected: str) -> None:
    """Fetch a file with a progress bar; it appears under its name only when whole and checked."""
    import http.client  # here, so that programs that fetch nothing start fast

    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, partial)
        found = checksum(partial)
        if found != expected:
            raise UserError(f"{url} gave an unexpected file (checksum {found}, expected {expected}); nothing was kept")
        partial.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"{path.name} is not in {path.parent} and cannot be downloaded from {url} ({error}); "
            f"fetch it elsewhere and say where it is with --data DIR or {ENVIRONMENT_VARIABLE}"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _fetch(url: str, target: Path) -> None:
    import urllib.request

    from rich.progress import Progress

    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,  # noqa: S310 - our own constant addresses
        target.open("wb") as file,
        Progress() as progress,
    ):
        length = response.headers.get("Content-Length")
        bar = progress.add_task(f"downloading {Path(url).name}", total=int(length) if length else None)
        while chunk := response.read(DOWNLOADED_AT_ONCE_BYTES):
            file.write(chunk)
            progress.advance(bar, len(chunk))
        received = file.tell()
    if length and received != int(length):
        raise OSError(f"the connection ended after {received} of {length} bytes")
