"""The payload of a message: one Array, in memory or in a file, that goes over the wire whole or in pieces."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from common.errors import MessageError
from common.storage.spool import PIECE_BYTES, Spool

VECTORS_RECORD = "vectors"  # the key of the record that holds the payload
_PAYLOAD = "payload"
_DTYPE, _STYPE = "uint8", "proxskip"


def payload_bytes(content: RecordDict | ArrayRecord) -> int:
    """Return the size of the encoded vectors in a message."""
    record = content if isinstance(content, ArrayRecord) else content.get(VECTORS_RECORD)
    return sum(len(_bytes_of(array)) for array in record.values()) if isinstance(record, ArrayRecord) else 0


def cut(content: RecordDict) -> tuple[RecordDict, bytes | Spool]:
    """Return a message's content with no more than the first piece of its payload, and the whole payload."""
    array = _payload_of(content)
    if array is None:
        return content, b""
    data = _bytes_of(array)
    return _with_payload(content, _array(data[:PIECE_BYTES], len(data))), data


def piece(data: bytes | Spool, number: int) -> bytes:
    """Return one piece of a payload, counted from 0."""
    return data[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]


def pieces_to_come(content: RecordDict) -> range:
    """Return the numbers of the pieces that `cut` left out."""
    return range(1, -(-payload_size(content) // PIECE_BYTES))


def payload_size(content: RecordDict) -> int:
    """Return how long the payload says it is, here or still to come."""
    array = _payload_of(content)
    return array.shape[0] if array is not None and array.shape else 0


class Assembly:
    """The content of a message whose payload comes in pieces: put together in a file, as it is large."""

    def __init__(self, content: RecordDict) -> None:
        self._content = content
        self.missing = set(pieces_to_come(content))
        array = _payload_of(content)
        if array is not None and len(array.data) > PIECE_BYTES:
            raise MessageError(f"a first piece of {len(array.data)} bytes")
        self._spool: Spool | None = None
        if array is not None and self.missing:
            self._spool = Spool(array.shape[0])
            self._spool.write(0, array.data)

    def add(self, number: int, data: bytes) -> None:
        """Put in a piece."""
        start = number * PIECE_BYTES
        spool = self._spool if number in self.missing else None
        if spool is None or len(data) != min(PIECE_BYTES, len(spool) - start):
            raise MessageError(f"a piece {number} of {len(data)} bytes, where that was not expected")
        spool.write(start, data)
        self.missing.discard(number)

    def content(self) -> RecordDict:
        """Return the content with the whole payload."""
        return _with_payload(self._content, SpooledArray(self._spool)) if self._spool else self._content


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


def _payload_of(content: RecordDict) -> Array | None:
    # Not by `content.array_records`: it makes a cycle, which keeps the payload in memory until garbage is collected.
    record = content.get(VECTORS_RECORD)
    return record.get(_PAYLOAD) if isinstance(record, ArrayRecord) else None


def _with_payload(content: RecordDict, array: Array) -> RecordDict:
    arrays = ArrayRecord()
    arrays[_PAYLOAD] = array  # its constructor would make an Array of its own
    return RecordDict({**content, VECTORS_RECORD: arrays})


def _array(data: bytes, size: int) -> Array:
    return Array(dtype=_DTYPE, shape=(size,), stype=_STYPE, data=data)


def record_of(data: bytes | Spool) -> ArrayRecord:
    """Return the one Array of a message, around its payload."""
    arrays = ArrayRecord()
    arrays[_PAYLOAD] = SpooledArray(data) if isinstance(data, Spool) else _array(data, len(data))
    return arrays


def payload_in(arrays: ArrayRecord) -> bytes | Spool:
    """Return the payload of a message."""
    array = arrays.get(_PAYLOAD)
    if array is None:
        raise MessageError("a message without a payload")
    return _bytes_of(array)


def _bytes_of(array: Array) -> bytes | Spool:
    return array.spool if isinstance(array, SpooledArray) else array.data
