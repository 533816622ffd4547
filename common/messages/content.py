"""A message's content, as Flower's records: the bytes of a Question or a Reply, and its payload where it has one."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from common.errors import MessageError
from common.storage.spool import Spool

_HEAD, _PAYLOAD = "proxskip", "payload"  # each the key of a record, and in it of the one value
_DTYPE, _STYPE = "uint8", "proxskip"


class SpooledArray(Array):
    """A payload in a file, which Flower sees as bytes if it asks for them: for nodes and servers of its own."""

    __qualname__ = Array.__qualname__  # it goes over the wire, and is looked up there

    def __init__(self, spool: Spool) -> None:
        self.dtype, self.shape, self.stype = _DTYPE, (len(spool),), _STYPE
        self.spool = spool

    @property
    def data(self) -> bytes:  # type: ignore[override] # nobody sets it
        """Return all bytes."""
        return self.spool[:]


def arrays_of(payload: bytes | Spool) -> ArrayRecord:
    """Return a payload as Flower's record: one Array, as Flower moves each in requests of its own."""
    arrays = ArrayRecord()  # its constructor would make an Array of its own
    arrays[_PAYLOAD] = (
        SpooledArray(payload)
        if isinstance(payload, Spool)
        else Array(dtype=_DTYPE, shape=(len(payload),), stype=_STYPE, data=payload)
    )
    return arrays


def payload_in(arrays: ArrayRecord) -> bytes | Spool:
    """Return the payload of a record."""
    array = arrays.get(_PAYLOAD)
    if array is None:
        raise MessageError("a message without a payload")
    return array.spool if isinstance(array, SpooledArray) else array.data


class Content(RecordDict):
    """The bytes of a message, of which Flower's records are made when Flower first looks at them: mostly never."""

    __slots__ = ("_records", "said")
    __qualname__ = RecordDict.__qualname__  # it goes over the wire, and is looked up there

    def __init__(self, head: bytes, payload: ArrayRecord | bytes | Spool) -> None:
        self.said: tuple[bytes, ArrayRecord | bytes | Spool] | None = head, payload

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """Return where Flower keeps the records."""
        if self.said is not None:
            (head, payload), self.said = self.said, None  # the records may be changed from now on
            self._records = RecordDict({_HEAD: ConfigRecord({_HEAD: head})})
            if len(payload):
                self._records[_PAYLOAD] = payload if isinstance(payload, ArrayRecord) else arrays_of(payload)
        return self._records.__dict__

    def copy(self) -> RecordDict:  # type: ignore[override]
        """Return another dictionary of the same records."""
        return RecordDict(dict(self))

    def __reduce__(self) -> tuple[type[RecordDict], tuple[dict[str, Any]]]:
        return RecordDict, (dict(self),)


def content_of(head: bytes, payload: ArrayRecord | bytes | Spool = b"") -> RecordDict:
    """Return the content of a message; of a payload that many share, as the record that they share."""
    return Content(head, payload)


def head_of(content: RecordDict) -> bytes:
    """Return the bytes of a message's Question or Reply."""
    if isinstance(content, Content) and content.said:
        return content.said[0]
    record = content.get(_HEAD)
    head = record.get(_HEAD) if isinstance(record, ConfigRecord) else None
    if not isinstance(head, bytes):
        raise MessageError("a message without a head")
    return head


def payload_of(content: RecordDict) -> bytes | Spool:
    """Return the payload of a message; nothing where it has none."""
    # Not by `content.array_records`: it makes a cycle, which keeps the payload in memory until garbage is collected.
    payload = content.said[1] if isinstance(content, Content) and content.said else content.get(_PAYLOAD, b"")
    if isinstance(payload, ArrayRecord):
        return payload_in(payload)
    return payload if isinstance(payload, (bytes, Spool)) else b""
