"""What fuzzers start from, and what they have found: `make fuzz` looks for more."""

from __future__ import annotations

import importlib

import pytest

from fuzz.__main__ import TARGETS
from fuzz.target import Target


def target(name: str) -> Target:
    found: Target = importlib.import_module(f"fuzz.{name}").TARGET
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_readers_accept_what_fuzzers_start_from(name: str) -> None:
    """A fuzzer whose seeds are refused would not get any further."""
    seeds = list(target(name).seeds())
    assert [seed for seed in seeds if not target(name).read(seed)] == []
    assert max(map(len, seeds)) <= target(name).longest_bytes
