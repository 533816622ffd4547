"""A message by its bytes is to Flower what its own records are."""

from __future__ import annotations

import pickle

import pytest
from flwr.app import ConfigRecord, RecordDict

from common.messages.content import arrays_of, content_of, head_of, payload_of

HEAD, PAYLOAD = b"a head", b"a payload"


def records(payload: bytes) -> RecordDict:
    """Return a content as Flower itself would make it."""
    content = RecordDict({"proxskip": ConfigRecord({"proxskip": HEAD})})
    if payload:
        content["payload"] = arrays_of(payload)
    return content


@pytest.mark.parametrize("payload", [b"", PAYLOAD])
def test_flower_sees_records_wherever_it_looks(payload: bytes) -> None:
    expected = records(payload)
    for seen in (dict, len, list, repr, lambda one: one.copy(), lambda one: one.object_id, lambda one: one.deflate()):
        assert seen(content_of(HEAD, payload)) == seen(expected)
    assert content_of(HEAD, payload) == expected
    assert pickle.loads(pickle.dumps(content_of(HEAD, payload))) == expected  # noqa: S301 - our own


@pytest.mark.parametrize("payload", [PAYLOAD, arrays_of(PAYLOAD)])
def test_the_bytes_are_the_same_before_and_after_flower_has_looked(payload: bytes) -> None:
    content = content_of(HEAD, payload)
    for _ in range(2):
        assert (head_of(content), payload_of(content)) == (HEAD, PAYLOAD)
        assert "payload" in content


def test_what_somebody_changes_in_the_records_is_what_the_message_says() -> None:
    content = content_of(HEAD, PAYLOAD)
    content["proxskip"] = ConfigRecord({"proxskip": b"another"})
    del content["payload"]
    assert (head_of(content), payload_of(content)) == (b"another", b"")
