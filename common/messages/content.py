"""A message's content, as Flower's records: the bytes of a Question or a Reply, and its payload where it has one."""

from __future__ import annotations

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


def content_of(head: bytes, arrays: ArrayRecord | None = None) -> RecordDict:
    """Return the content of a message."""
    content = RecordDict({_HEAD: ConfigRecord({_HEAD: head})})
    if arrays is not None:
        content[_PAYLOAD] = arrays
    return content


def head_of(content: RecordDict) -> bytes:
    """Return the bytes of a message's Question or Reply."""
    record = content.get(_HEAD)
    head = record.get(_HEAD) if isinstance(record, ConfigRecord) else None
    if not isinstance(head, bytes):
        raise MessageError("a message without a head")
    return head


def payload_of(content: RecordDict) -> bytes | Spool:
    """Return the payload of a message; nothing where it has none."""
    # Not by `content.array_records`: it makes a cycle, which keeps the payload in memory until garbage is collected.
    arrays = content.get(_PAYLOAD)
    return payload_in(arrays) if isinstance(arrays, ArrayRecord) else b""
