"""How near uploads are to their limit, and how fast they are written and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bench.measure import Ratio, median_seconds
from bench.vectors import SPARSITIES, one_pass
from common.codec.bytestream import deflate
from common.codec.places import Gaps, entries_of, information_bits
from common.codec.scales import BFLOAT16, FLOAT32, Grid
from common.codec.vector import Known, decode, decode_entries, encode
from common.rounds.rounding import grid_step
from common.vectors.exact_sum import ExactSum
from common.vectors.sparsity import top_k

REPETITIONS = 9
MOST_INDEX_RATIO = 1.02
MOST_UPLOAD_RATIO = {"float32": 0.47, "bfloat16": 0.22}
MOST_SECONDS_A_GIGABYTE = {
    "encode": 1.0,
    "decode": 0.4,
    "encode on a grid, given the model": 1 / 0.7,
    "decode on a grid, given the model": 1 / 1.5,
}
FAST_AT = 0.95  # sparsity for which the lines above are
GRID_BITS = 2
DRIFT = 0.3  # of a client, where the model's own values are 1 on average
CLIENTS = 3  # whose mean is the model that an upload is given
MOST_BITS_A_VALUE = 8.0
PLAIN_BYTES = 8  # an int32 place and a float32 value
SMALL = (281, 28)  # the model of BlogFeedback at 90 %
MOST_FRAMING_BYTES = 16


def run(uniform: Tensor, trained: Tensor) -> list[Ratio]:
    """Return sizes on a uniform support and on a trained model, and speeds on the first, which is large."""
    ratios = []
    for sparsity in SPARSITIES:
        ratios += _sizes(top_k(uniform, 1 - sparsity), f"uniform, {sparsity:.0%}", MOST_INDEX_RATIO, None)
        ratios += _sizes(top_k(trained, 1 - sparsity), f"trained ResNet, {sparsity:.0%}", None, MOST_UPLOAD_RATIO)
        ratios += _speeds(top_k(uniform, 1 - sparsity), sparsity)
        ratios += _given(uniform, sparsity)
    return [*ratios, _framing(uniform)]


def _sizes(vector: Tensor, name: str, most_index: float | None, most_upload: dict[str, float] | None) -> list[Ratio]:
    places, count = decode_entries(encode(vector), len(vector)).places, int(torch.count_nonzero(vector))
    assert places is not None
    (gaps,) = deflate([Gaps().encode(places, len(vector))])
    index = 8 * len(gaps) / information_bits(len(vector), count)
    ratios = [Ratio(f"index / information bound, {name}", index, most_index)]
    for precision, scale in {"float32": FLOAT32, "bfloat16": BFLOAT16}.items():
        sent = len(encode(vector if precision == "float32" else vector.to(torch.bfloat16).float(), scale))
        limit = most_upload[precision] if most_upload else None
        ratios += [
            Ratio(f"{precision} upload / int32 and float32, {name}", sent / (PLAIN_BYTES * count), limit),
            Ratio(f"{precision} upload / dense model, {name}", sent / (4 * len(vector)), None),
        ]
    return ratios


def _speeds(vector: Tensor, sparsity: float) -> list[Ratio]:
    data, total = encode(vector), ExactSum(len(vector))

    def decode_and_add() -> None:
        entries = decode_entries(data, len(vector))
        assert entries.places is not None
        total.add_at(entries.places, entries.values)

    actions = {
        "pass": one_pass(vector),
        "encode": lambda: encode(vector),
        "decode": lambda: decode_entries(data, len(vector)),
        "decode to a dense vector": lambda: decode(data, len(vector)),
        "decode and add": decode_and_add,
    }
    return _times(actions, len(vector), sparsity)


def _times(actions: Mapping[str, Callable[[], object]], size: int, sparsity: float) -> list[Ratio]:
    seconds = median_seconds(actions, REPETITIONS)
    unit = seconds.pop("pass")
    limits = MOST_SECONDS_A_GIGABYTE if sparsity == FAST_AT else {}
    gigabytes = 4e-9 * size
    return [
        *(Ratio(f"{name} / copy, {sparsity:.0%}", time / unit, None) for name, time in seconds.items()),
        *(
            Ratio(f"{name}, seconds a GB of dense model, {sparsity:.0%}", time / gigabytes, limits.get(name))
            for name, time in seconds.items()
        ),
    ]


def _given(vector: Tensor, sparsity: float) -> list[Ratio]:
    """Measure an upload on a grid, given the mean of others that are as far from each other as clients' are."""
    step = grid_step(vector, 1 - sparsity, GRID_BITS)
    assert step is not None
    generator = torch.Generator().manual_seed(1)
    drifted = (vector + DRIFT * torch.randn(len(vector), generator=generator) for _ in range(CLIENTS + 1))
    upload, *others = (torch.round(top_k(one, 1 - sparsity) / step) * step + 0.0 for one in drifted)
    given = entries_of(sum(others, start=torch.zeros(())) / CLIENTS)
    data, known = encode(upload, Grid(step), given), Known(given=given, step=step)
    actions = {
        "encode on a grid, given the model": lambda: encode(upload, Grid(step), given),
        "decode on a grid, given the model": lambda: decode_entries(data, len(vector), None, known),
    }
    bits = 8 * len(data) / int(torch.count_nonzero(upload))
    limit = MOST_BITS_A_VALUE if sparsity == FAST_AT else None
    return [
        Ratio(f"bits a kept value on a grid, given the model, {sparsity:.0%}", bits, limit),
        *_times({"pass": one_pass(vector), **actions}, len(vector), sparsity),
    ]


def _framing(vector: Tensor) -> Ratio:
    """Measure what a small upload has beside its values and the information in its places."""
    size, count = SMALL
    sent = len(encode(top_k(vector[:size].clone(), count / size)))
    framing = sent - 4 * count - information_bits(size, count) / 8
    return Ratio(f"bytes around {count} values of {size}", framing, MOST_FRAMING_BYTES)
