"""A client's memory on disk: safe at any moment, whatever of a writing got there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from common.errors import UserError
from common.storage import slots
from common.storage.disk import NoRoomError
from common.storage.slots import Slots
from tests.harness.disk import waits_for_the_disk


def value_in(place: Slots) -> float | None:
    saved = place.read()
    return None if saved is None else float(saved[0]["control"][0])


def save(place: Slots, value: float, size: int = 5) -> None:
    place.write({"control": torch.full((size,), value), "none": None}, {"round": str(value)})


def test_what_is_written_comes_back_also_to_another_process(tmp_path: Path) -> None:
    place = Slots(tmp_path / "deep" / "a.memory", "a memory")
    assert place.read() is None
    for value in (1.0, 2.0, 3.0):
        save(place, value, size=int(1000 / value))
        other = Slots(tmp_path / "deep" / "a.memory", "a memory")
        saved = other.read()
        assert saved is not None
        tensors, metadata = saved
        assert tensors.keys() == {"control"}
        assert tensors["control"].equal(torch.full((int(1000 / value),), value))
        assert metadata == {"round": str(value)}
    save(other, 4.0)
    assert value_in(Slots(tmp_path / "deep" / "a.memory", "a memory")) == 4.0
    assert [file.stat().st_mode & 0o777 for file in place.files] == [0o600] * 2


def test_kinds_of_tensors_come_back(tmp_path: Path) -> None:
    place = Slots(tmp_path / "a", "a memory")
    given = {"a": torch.randn(7), "b": torch.randn(3, dtype=torch.float64), "c": torch.arange(9, dtype=torch.uint8)}
    place.write({**given, "empty": torch.zeros(0)}, {})
    saved = place.read()
    assert saved is not None
    assert all(saved[0][name].equal(tensor) for name, tensor in given.items())


class PowerFailsError(Exception):
    """It gets dark."""


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_power_failure_at_any_moment_leaves_the_last_writing(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the writing that it falls into, so much is there."""
    place = Slots(tmp_path / "a", "a memory")
    for value in (1.0, 2.0):
        save(place, value)

    def failing(descriptor: int, parts: list[memoryview], start: int, _: int) -> int:
        data = b"".join(parts)
        os.pwrite(descriptor, data[: int(share * len(data))], start)
        raise PowerFailsError

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing)
        with pytest.raises(PowerFailsError):
            save(place, 3.0)
    again = Slots(tmp_path / "a", "a memory")
    assert value_in(again) == 2.0
    save(again, 4.0)
    assert value_in(Slots(tmp_path / "a", "a memory")) == 4.0


def test_pages_that_got_to_the_disk_in_any_order_are_no_writing(tmp_path: Path) -> None:
    """The header and the end of the third writing are there, and its middle is still that of the first."""
    place = Slots(tmp_path / "a", "a memory")
    save(place, 1.0, size=5000)
    before = place.files[0].read_bytes()
    save(place, 2.0, size=5000)
    save(place, 3.0, size=5000)
    after = place.files[0].read_bytes()
    place.files[0].write_bytes(after[:4096] + before[4096:8192] + after[8192:])
    assert value_in(Slots(tmp_path / "a", "a memory")) == 2.0


def test_what_the_system_writes_in_several_turns_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwritev", lambda descriptor, parts, start, _: pwrite(descriptor, b"".join(parts)[:7], start)
    )
    place = Slots(tmp_path / "a", "a memory")
    save(place, 1.0)
    assert value_in(place) == 1.0


@pytest.mark.parametrize(("waits", "synced"), [(True, 1), (False, 0)])
def test_it_is_on_the_disk_if_it_has_to_be(
    waits: bool, synced: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = waits_for_the_disk(monkeypatch)
    Slots(tmp_path / "a", "a memory").write({"control": torch.ones(3)}, {}, wait_for_disk=waits)
    assert len(done) == synced


def test_where_a_write_cannot_wait_for_the_disk_it_is_asked_for_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    monkeypatch.setattr(slots, "UNTIL_ON_DISK", 0)
    monkeypatch.setattr(os, "fsync", done.append)
    place = Slots(tmp_path / "a", "a memory")
    for waits in (True, True, False, False):  # the first two are in new files
        done.clear()
        place.write({"control": torch.ones(3)}, {}, wait_for_disk=waits)
        assert bool(done) == waits


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Slots(tmp_path / "a", "a memory")
    save(place, 1.0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(slots, "reserve_room", full)
        with pytest.raises(NoRoomError, match=r"cannot write .*a\.1: .*No space left"):
            save(place, 2.0)
    assert value_in(place) == 1.0
    save(place, 3.0)
    assert value_in(place) == 3.0


def test_a_file_that_is_something_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.0").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"a\.0 is not a memory; move it away"):
        Slots(tmp_path / "a", "a memory").read()
