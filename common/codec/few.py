"""Few whole numbers, given the vector that both sides have: each decision by a range coder that learns.

The layout is in vector.py.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from common.codec.bytestream import Reader, Section
from common.codec.change import CLASSES, Change, Known
from common.codec.range_coder import RangeReader, RangeWriter
from common.codec.scales import Scale, Units
from common.codec.symbols import CONTEXTS_OF_NUMBER, KnownEntry, Numbers, gaps
from common.errors import DecodeError

_CLASSES_A_GROUP = 2  # whose numbers share their contexts
_LONGEST_BYTES = 1 << 18  # more than what any few numbers take
_AT_ONCE = 1024  # known entries: then it is seen whether there are too many that stay

_MOVES = [Numbers(CLASSES + group * CONTEXTS_OF_NUMBER, less=1) for group in range(-(-CLASSES // _CLASSES_A_GROUP))]
_ENTRIES = [KnownEntry(kind, _MOVES[kind // _CLASSES_A_GROUP]) for kind in range(CLASSES)]
_TREES = [entry.tree for entry in _ENTRIES]
_OTHERS, _BESIDE, _COME, _GAPS, _CONTEXTS = (
    CLASSES + (len(_MOVES) + kind) * CONTEXTS_OF_NUMBER for kind in range(5)
)  # the first context of each kind, and how many there are
_OTHER, _BESIDE_IT = Numbers(_OTHERS), Numbers(_BESIDE, less=1)
_HOW_MANY = Numbers(_COME, less=1, has_sign=False)


def encode_few(change: Change, known: Known) -> list[Section]:
    """Write a change."""
    writer, count, numbers = RangeWriter(_CONTEXTS), change.ranks.size, change.numbers.tolist()
    moves: list[int | None] = [None] * known.places.size
    for place, move in zip(change.stay.tolist(), numbers, strict=False):
        moves[place] = move
    writer.write(_ENTRIES[kind].path(move) for kind, move in zip(known.classes.tolist(), moves, strict=True))
    writer.write([_HOW_MANY.path(count)])
    distances, distance = np.diff(change.ranks, prepend=-1) - 1, gaps(_GAPS, _low_bits(known, count))
    coming = zip(distances.tolist(), numbers[change.stay.size :], strict=True)
    writer.write(chain.from_iterable((distance.path(gap), _OTHER.path(number)) for gap, number in coming))
    if change.beside is not None:
        writer.write(map(_BESIDE_IT.path, change.beside.tolist()))
    return [writer.end()]


def decode_few(reader: Reader, known: Known, scale: Scale, most: int) -> Change:
    """Read a change, which may leave so many values at most."""
    if reader.left > _LONGEST_BYTES:
        raise DecodeError(f"{reader.left} bytes of few numbers")
    data = RangeReader(bytes(reader.take(reader.left, "numbers")), _CONTEXTS)
    stays, numbers, classes = list[int](), list[int](), known.classes.tolist()
    for start in range(0, len(classes), _AT_ONCE):
        moves = data.read([_TREES[kind] for kind in classes[start : start + _AT_ONCE]])
        stays += [place for place, move in enumerate(moves, start) if move is not None]
        numbers += [move for move in moves if move is not None]
        _refuse_more(len(stays), most)
    (count,) = data.read([_HOW_MANY.tree])
    if count > known.others:
        raise DecodeError(f"{count} of {known.others} places")
    _refuse_more(len(stays) + count, most)
    coming = data.read([gaps(_GAPS, _low_bits(known, count)).tree, _OTHER.tree] * count)
    distances = coming[::2]
    if sum(distances) + count > known.others:
        raise DecodeError("places beyond the end")
    numbers += coming[1::2]
    beside = data.read([_BESIDE_IT.tree] * len(numbers)) if isinstance(scale, Units) else None
    data.end()
    return Change(
        stay=np.array(stays, np.int32),
        ranks=np.cumsum(np.array(distances, np.int32) + 1, dtype=np.int32) - 1,
        numbers=np.array(numbers, np.int64),
        beside=None if beside is None else np.array(beside, np.int64),
    )


def _low_bits(known: Known, count: int) -> int:
    """Return how many bits of a gap are as good as random."""
    return (known.others // count).bit_length() - 1 if count else 0


def _refuse_more(count: int, most: int) -> None:
    if count > most:
        raise DecodeError(f"{count} values beyond the {most} that were expected")
