"""How near uploads are to their limit, and how fast they are written and read."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.measure import Ratio, median_seconds
from bench.vectors import SPARSITIES, one_pass
from common.codec.bytestream import deflate
from common.codec.places import Gaps, information_bits
from common.codec.scales import BFLOAT16, FLOAT32
from common.codec.vector import decode, decode_entries, encode
from common.vectors.exact_sum import ExactSum
from common.vectors.sparsity import top_k

REPETITIONS = 9
MOST_INDEX_RATIO = 1.02
MOST_UPLOAD_RATIO = {"float32": 0.47, "bfloat16": 0.22}
MOST_SECONDS_A_GIGABYTE = {"encode": 1.0, "decode": 0.4}
FAST_AT = 0.95  # sparsity for which the two lines above are
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
    seconds = median_seconds(actions, REPETITIONS)
    unit = seconds.pop("pass")
    limits = MOST_SECONDS_A_GIGABYTE if sparsity == FAST_AT else {}
    gigabytes = 4e-9 * len(vector)
    return [
        *(Ratio(f"{name} / copy, {sparsity:.0%}", time / unit, None) for name, time in seconds.items()),
        *(
            Ratio(f"{name}, seconds a GB of dense model, {sparsity:.0%}", time / gigabytes, limits.get(name))
            for name, time in seconds.items()
        ),
    ]


def _framing(vector: Tensor) -> Ratio:
    """Measure what a small upload has beside its values and the information in its places."""
    size, count = SMALL
    sent = len(encode(top_k(vector[:size].clone(), count / size)))
    framing = sent - 4 * count - information_bits(size, count) / 8
    return Ratio(f"bytes around {count} values of {size}", framing, MOST_FRAMING_BYTES)
