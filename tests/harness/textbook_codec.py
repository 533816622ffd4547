"""A decoder written from the documentation in common/codec/vector.py alone: slow, trusting, without numpy."""

from __future__ import annotations

import math
import struct
import zlib


def plain_decode(data: bytes, size: int) -> list[float]:
    """Read a vector."""
    body = data[:-4]
    assert zlib.crc32(body) == int.from_bytes(data[-4:], "little")
    form, rest = body[0], body[1:]
    way, bfloat16, coded = form & 3, bool(form & 4), (bool(form & 8), bool(form & 16))
    count = size
    if way:
        count, rest = _varint(rest)
    lengths = []
    for _ in range((way == 3) + sum(coded)):
        length, rest = _varint(rest)
        lengths.append(length)
    places = list(range(size))
    if way == 1:
        places = [place for place, bit in enumerate(_bits(rest)[:size]) if bit]
        rest = rest[math.ceil(size / 8) :]
    elif way == 2:
        places, rest = _two_parts(rest, size, count)
    elif way == 3:
        length = lengths.pop(0)
        places, rest = _gaps(zlib.decompress(rest[:length], -15)), rest[length:]
    values = _values(rest, count, bfloat16, coded, lengths)
    vector = [0.0] * size
    for place, value in zip(places, values, strict=True):
        vector[place] = value
    return vector


def _varint(data: bytes) -> tuple[int, bytes]:
    number, place = 0, 0
    while True:
        number |= (data[place] & 127) << (7 * place)
        place += 1
        if data[place - 1] < 128:
            return number, data[place:]


def _bits(data: bytes) -> list[int]:
    return [byte >> place & 1 for byte in data for place in range(8)]


def _two_parts(data: bytes, size: int, count: int) -> tuple[list[int], bytes]:
    low = math.floor(math.log2(size / count)) if count else 0
    length = count * low + count + (size - 1) // 2**low
    bits = _bits(data[: math.ceil(length / 8)])
    lows = [sum(bits[number * low + bit] << bit for bit in range(low)) for number in range(count)]
    steps = [place for place, bit in enumerate(bits[count * low : length]) if bit]
    places = [(step - number << low) + lows[number] for number, step in enumerate(steps)]
    return places, data[math.ceil(length / 8) :]


def _gaps(coded: bytes) -> list[int]:
    places, place, gap = [], -1, 0
    for byte in coded:
        gap += byte
        if byte < 255:
            place += gap + 1
            places.append(place)
            gap = 0
    return places


def _values(data: bytes, count: int, bfloat16: bool, coded: tuple[bool, bool], lengths: list[int]) -> list[float]:
    if not any(coded):
        width = 2 if bfloat16 else 4
        whole = [data[width * number : width * (number + 1)] for number in range(count)]
    else:
        planes = []
        for is_coded in coded:
            length = lengths.pop(0) if is_coded else count
            planes.append(zlib.decompress(data[:length], -15) if is_coded else data[:length])
            data = data[length:]
        low = 0 if bfloat16 else 2
        whole = [
            data[low * number : low * (number + 1)] + bytes([planes[1][number], planes[0][number]])
            for number in range(count)
        ]
    return [struct.unpack("<f", bytes(4 - len(value)) + value)[0] for value in whole]
