"""Reading and writing bytes that nobody vouches for: varints, sections of known length, Huffman-coded sections."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

LARGEST_VARINT_BYTES = 5
CHUNK_BYTES = 1 << 17  # that are coded at a time


class DecodeError(ValueError):
    """Bytes that are no encoded vector of the expected size."""


def varint(number: int) -> bytes:
    """Write a number with 7 bits a byte."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


class Reader:
    """Takes bytes from the front, and refuses to go beyond the end."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.rest = memoryview(data).cast("B")

    def take(self, count: int, what: str) -> memoryview:
        """Return the next bytes."""
        if count > len(self.rest):
            raise DecodeError(f"{len(self.rest)} bytes where {count} bytes of {what} were expected")
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

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


def deflate(sections: Sequence[bytes | memoryview]) -> list[bytes]:
    """Huffman-code each section, with new tables wherever frequencies have changed; long ones on all cores."""
    chunks = [list(_chunks(memoryview(section))) for section in sections]
    threads = min(os.cpu_count() or 1, sum(len(section) for section in chunks))
    if threads < 2 or sum(map(len, sections)) < CHUNK_BYTES:
        return [b"".join(_deflate(*chunk) for chunk in section) for section in chunks]
    with ThreadPoolExecutor(threads) as pool:
        coded = [[pool.submit(_deflate, *chunk) for chunk in section] for section in chunks]
    return [b"".join(chunk.result() for chunk in section) for section in coded]


def _chunks(data: memoryview) -> Iterator[tuple[memoryview, bool]]:
    """Yield parts, and whether each is the last."""
    for start in range(0, max(1, len(data)), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES], start + CHUNK_BYTES >= len(data)


def _deflate(data: memoryview, is_last: bool) -> bytes:
    # As nothing refers to what was before, streams that end at a byte are one stream when they are joined.
    stream = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_HUFFMAN_ONLY)
    return stream.compress(data) + stream.flush(zlib.Z_FINISH if is_last else zlib.Z_FULL_FLUSH)


def inflate(data: memoryview, most: int, what: str) -> bytes:
    """Read what `deflate` wrote, if it is no longer than expected and ends where the data do."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        plain = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise DecodeError(f"{what}: cannot be inflated: {error}") from None
    if len(plain) > most:
        raise DecodeError(f"{what}: more than the expected {most} bytes")
    if not stream.eof or stream.unused_data:
        raise DecodeError(f"{what}: the stream does not end where its section does")
    return plain


def memory_of(array: NDArray[Any]) -> bytes | memoryview:
    """Return the bytes of an array without a copy."""
    return array.data.cast("B") if array.size else b""
