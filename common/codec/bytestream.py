"""Reading and writing bytes that nobody vouches for: varints, sections of known length, Huffman-coded sections."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from common.errors import DecodeError
from common.storage.spool import Spool

try:
    from isal import isal_zlib as for_long_sections  # in half the time, once it has begun: the extra `fast`
except ImportError:
    from zlib_ng import zlib_ng as for_long_sections  # type: ignore[no-redef]

LARGEST_VARINT_BYTES = 5
CHUNK_BYTES = 1 << 17  # that are coded at a time
LONG_BYTES = CHUNK_BYTES  # from which on a library is worth its beginning
CORES = os.cpu_count() or 1

Bytes = bytes | memoryview | Spool
Section = bytes | memoryview | NDArray[Any]


def varint(number: int) -> bytes:
    """Write a number with 7 bits a byte."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


class Reader:
    """Takes bytes from the front, and refuses to go beyond the end; of a file, it reads only what is taken."""

    def __init__(self, data: Bytes) -> None:
        self._data = data if isinstance(data, Spool) else memoryview(data).cast("B")
        self._start, self._end = 0, len(self._data)

    @property
    def left(self) -> int:
        """Return how many bytes are left."""
        return self._end - self._start

    def take(self, count: int, what: str) -> bytes | memoryview:
        """Return the next bytes."""
        start = self._skip(count, what)
        return self._data[start : start + count]

    def section(self, count: int, what: str) -> Reader:
        """Return the next bytes unread, to be taken from later."""
        section = self.again()
        self._skip(count, what)
        section._end = self._start
        return section

    def again(self) -> Reader:
        """Return a reader of what is left, which leaves this one as it is."""
        reader = Reader.__new__(Reader)
        reader._data, reader._start, reader._end = self._data, self._start, self._end
        return reader

    def varint(self, what: str) -> int:
        """Return the next number."""
        number = 0
        for place in range(LARGEST_VARINT_BYTES):
            byte = self.take(1, what)[0]
            number |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                if byte == 0 and place:
                    break
                return number
        raise DecodeError(f"{what} is not written as a number should be")

    def _skip(self, count: int, what: str) -> int:
        if count > self.left:
            raise DecodeError(f"{self.left} bytes where {count} bytes of {what} were expected")
        self._start += count
        return self._start - count


def deflate(sections: Sequence[Section]) -> list[bytes]:
    """Huffman-code each section, with new tables wherever frequencies have changed; long ones on all cores."""
    chunks = [list(_chunks(section)) for section in sections]
    threads = min(CORES, sum(len(section) for section in chunks))
    if threads < 2 or sum(map(len, sections)) < CHUNK_BYTES:
        return [b"".join(_deflate(*chunk) for chunk in section) for section in chunks]
    with ThreadPoolExecutor(threads) as pool:
        coded = [[pool.submit(_deflate, *chunk) for chunk in section] for section in chunks]
    return [b"".join(chunk.result() for chunk in section) for section in coded]


def in_memory(section: Section) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a section, of a long one chunk by chunk: an array may have its entries far apart."""
    for chunk, _ in _chunks(section):
        yield memory_of(np.ascontiguousarray(chunk)) if isinstance(chunk, np.ndarray) else chunk


def _chunks(section: Section) -> Iterator[tuple[Section, bool]]:
    """Yield parts, and whether each is the last."""
    for start in range(0, max(1, len(section)), CHUNK_BYTES):
        yield section[start : start + CHUNK_BYTES], start + CHUNK_BYTES >= len(section)


def _deflate(chunk: Section, is_last: bool) -> bytes:
    # Only runs refer to what was before, within a chunk: so streams that end at a byte are one stream when joined.
    stream = zlib_ng.compressobj(1, zlib_ng.DEFLATED, -zlib_ng.MAX_WBITS, zlib_ng.DEF_MEM_LEVEL, zlib_ng.Z_RLE)
    (data,) = in_memory(chunk)
    return stream.compress(data) + stream.flush(zlib_ng.Z_FINISH if is_last else zlib_ng.Z_FULL_FLUSH)


class Inflater:
    """Reads what `deflate` wrote, as much at a time as is asked for."""

    def __init__(self, section: Reader) -> None:
        self._section = section
        library = zlib_ng if section.left < LONG_BYTES else for_long_sections
        self._stream = library.decompressobj(-zlib_ng.MAX_WBITS)

    def take(self, count: int, what: str) -> bytes:
        """Return the next bytes; fewer where the stream ends or breaks off."""
        parts: list[bytes] = []
        while count and not self._stream.eof:
            data = self._stream.unconsumed_tail or self._section.take(min(self._section.left, CHUNK_BYTES), what)
            try:
                part = self._stream.decompress(data, count)
            except (zlib_ng.error, for_long_sections.error) as error:  # type: ignore[misc] # they are exceptions
                raise DecodeError(f"{what}: cannot be inflated: {error}") from None
            if not (part or data):
                break
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def end(self, taken: int, what: str) -> None:
        """Refuse what goes on after so many bytes, or does not end where its section does."""
        if self.take(1, what):
            raise DecodeError(f"{what}: more than the expected {taken} bytes")
        if not self._stream.eof or self._stream.unused_data or self._section.left:
            raise DecodeError(f"{what}: the stream does not end where its section does")


def inflate(data: bytes | memoryview, most: int, what: str) -> bytes:
    """Read all that `deflate` wrote, if it is no longer than expected and ends where the data do."""
    stream = Inflater(Reader(data))
    plain = stream.take(most, what)
    stream.end(most, what)
    return plain


def size_bytes(section: Section) -> int:
    """Return how many bytes a section has."""
    return section.nbytes if isinstance(section, np.ndarray) else len(section)


def memory_of(array: NDArray[Any]) -> bytes | memoryview:
    """Return the bytes of an array without a copy."""
    return array.data.cast("B") if array.size else b""
