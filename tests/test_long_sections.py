"""Long Huffman-coded sections are read by another library where there is one: to the same bytes, and as wary."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from zlib_ng import zlib_ng

from common.codec import bytestream
from common.codec.bytestream import deflate, inflate
from common.errors import DecodeError

PLAIN = np.random.default_rng(0).normal(size=400_000).astype(np.float32).view(np.uint8)[3::4].copy()
CODED = deflate([PLAIN])[0]


@pytest.fixture(params=["isal", "zlib-ng"], autouse=True)
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    library = zlib_ng if request.param == "zlib-ng" else pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(bytestream, "for_long_sections", library)
    monkeypatch.setattr(bytestream, "LONG_BYTES", 0)


@pytest.mark.parametrize("size", [0, 1, 511, 70_000, PLAIN.size])
def test_what_was_coded_comes_back(size: int) -> None:
    assert inflate(deflate([PLAIN[:size]])[0], size, "a plane") == PLAIN[:size].tobytes()


@pytest.mark.parametrize(
    ("coded", "most"),
    {
        "cut off": (CODED[:-1], PLAIN.size),
        "with something behind it": (CODED + b"\0", PLAIN.size),
        "longer than it may be": (CODED, PLAIN.size - 1),
        "nothing": (b"", PLAIN.size),
    }.values(),
)
def test_what_is_not_as_announced_is_refused(coded: bytes, most: int) -> None:
    with pytest.raises(DecodeError):
        inflate(coded, most, "a plane")


def test_whatever_is_sent_is_read_or_refused_and_never_longer_than_expected() -> None:
    draw = np.random.default_rng(0)
    for _ in range(500):
        coded = bytearray(CODED[: draw.choice((40, 400, len(CODED)))])
        coded[draw.integers(40)] = draw.integers(256)
        with suppress(DecodeError):
            assert len(inflate(bytes(coded), PLAIN.size, "a plane")) <= PLAIN.size
