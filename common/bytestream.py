"""Reading and writing bytes that nobody vouches for: varints, sections of known length, Huffman-coded sections."""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

LARGEST_VARINT_BYTES = 5
LEAST_BYTES_A_THREAD = 1 << 17


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


def deflate(data: bytes | memoryview) -> bytes:
    """Huffman-code bytes, with new tables wherever their frequencies have changed."""
    view = memoryview(data)
    threads = min(os.cpu_count() or 1, len(view) // LEAST_BYTES_A_THREAD)
    if threads < 2:
        return _deflate(view, is_last=True)
    # Without references to what was before, streams that are cut at a byte are one stream when they are joined.
    ends = [len(view) * number // threads for number in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        chunks = [pool.submit(_deflate, view[start:end], is_last=end == len(view)) for start, end in pairwise(ends)]
    return b"".join(chunk.result() for chunk in chunks)


def _deflate(data: memoryview, *, is_last: bool) -> bytes:
    stream = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_HUFFMAN_ONLY)
    return stream.compress(data) + stream.flush(zlib.Z_FINISH if is_last else zlib.Z_FULL_FLUSH)


def inflate(data: memoryview, most: int, what: str) -> bytes:
    """Read what `deflate` wrote, if it is no longer than expected and ends where the data do."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        plain = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise DecodeError(f"{what} cannot be inflated: {error}") from None
    if len(plain) > most:
        raise DecodeError(f"{what} are more than the expected {most} bytes")
    if not stream.eof or stream.unused_data:
        raise DecodeError(f"{what} do not end where their section does")
    return plain
