"""What fuzzers start from, and what they have found: `make fuzz` looks for more."""

from __future__ import annotations

import base64
import importlib
import json
import struct
from pathlib import Path

import pytest

from client.memory import FORMAT
from client.request import make_request
from common.errors import UserError
from fuzz.__main__ import TARGETS
from fuzz.bundle import PEM
from fuzz.memory import RUN, file_of
from fuzz.target import Target
from server.keys.request import read_request

PLAN = {"round": 2, "local_steps": 16, "probability": 0.1, "learning_rate": 0.5, "density": 0.1, "precision": "float32"}
SENT = bytes.fromhex("01 01 04 000000c0 1f63a39e")


def target(name: str) -> Target:
    found: Target = importlib.import_module(f"fuzz.{name}").TARGET
    return found


def memory(kind: str = "F32", shape: tuple[int, ...] = (6,), **metadata: str) -> bytes:
    """Return a file with a control variate of 24 bytes, and an upload."""
    description = {
        "__metadata__": {
            "run": RUN,
            "format": FORMAT,
            "history": "{}",
            "plan": json.dumps(PLAN),
            "kept": "",
            "given": "0",
            "checksum": "0",
            **metadata,
        },
        "control": {"dtype": kind, "shape": shape, "data_offsets": [0, 24]},
        "sent": {"dtype": "U8", "shape": [len(SENT)], "data_offsets": [24, 24 + len(SENT)]},
    }
    return memory_of(json.dumps(description), bytes(24) + SENT)


def memory_of(text: str, tensors: bytes = b"") -> bytes:
    return file_of(struct.pack("<Q", len(text)) + text.encode() + tensors)


def with_version_18(pem: bytes, version: bytes) -> bytes:
    """Return a file whose first certificate or request has a version that there is not."""
    block = PEM.search(pem)
    assert block is not None
    inside = base64.b64decode(block[2])
    assert version in inside
    changed = base64.b64encode(inside.replace(version, version[:-1] + b"\x12", 1))
    return pem[: block.start(2)] + (b"  " if b"\n  " in pem else b"") + changed + pem[block.end(2) :]


@pytest.mark.parametrize("name", TARGETS)
def test_readers_accept_what_fuzzers_start_from(name: str) -> None:
    """A fuzzer whose seeds are refused would not get any further."""
    seeds = list(target(name).seeds())
    assert [seed for seed in seeds if not target(name).read(seed)] == []
    assert max(map(len, seeds)) <= target(name).longest_bytes


def test_a_memory_by_hand_is_one() -> None:
    assert target("memory").read(memory())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(memory_of('{"__metadata__":null}'), id="no metadata"),
        pytest.param(memory(kind="F4", shape=(48,)), id="a kind of numbers that torch has not"),
        pytest.param(memory(kind="BF16", shape=(12,)), id="a control of another kind"),
        pytest.param(memory(shape=(2, 3)), id="a control of another shape"),
        pytest.param(memory(kind="F64", shape=(3,)), id="a control of another size"),
        pytest.param(memory(plan="[" * 100_000), id="a plan without end"),
        pytest.param(memory(history='{"digest": 18446744073709551616}'), id="a history with too long a digest"),
        pytest.param(memory(plan=json.dumps({**PLAN, "round": [1]})), id="a plan of something else than numbers"),
    ],
)
def test_what_is_no_memory_is_refused(data: bytes) -> None:
    assert not target("memory").read(data)


def test_half_a_character_is_no_part_of_an_experiment() -> None:
    assert not target("experiment").read(b'\n? "\\uD800"\n')


def test_a_bundle_comes_back_however_its_lines_were_written() -> None:
    for seed in target("bundle").seeds():
        folded = seed.replace(b"authority: |\n", b"authority:\n").replace(b"\n  ", b"\n\n  ", 3)
        assert target("bundle").read(folded)


def test_an_upload_has_no_average() -> None:
    """In a file it was not even looked at."""
    assert not target("codec").read(
        bytes.fromhex("04 09090009 0000009fbfd5cf256b 000000313f92dd19b6 0800009fbf1484555b")
    )


def test_a_certificate_of_a_version_that_there_is_not_is_refused() -> None:
    for seed in target("bundle").seeds():
        assert not target("bundle").read(with_version_18(seed, b"\xa0\x03\x02\x01\x02"))


def test_a_request_of_a_version_that_there_is_not_is_refused(tmp_path: Path) -> None:
    file = make_request("client-0", tmp_path).request_file
    file.write_bytes(with_version_18(file.read_bytes(), b"\x02\x01\x00"))
    with pytest.raises(UserError, match="not a request that can be signed"):
        read_request(file)
