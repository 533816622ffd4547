"""The model card: a README.md in the form of Hugging Face, for whoever finds the model later."""

from __future__ import annotations

from collections.abc import Sequence

from common.experiment.plain_yaml import write_yaml
from common.learning.blueprint import Blueprint, Input
from common.say import one_line
from server.model.coefficients import Coefficients
from server.model.finished import FinishedModel

LIBRARY = "sparse-proxskip"
OPENING = f"---\nlibrary_name: {LIBRARY}\n"  # by which a card is known as ours
MOST_COEFFICIENTS = 20
MOST_INPUTS = 6
MOST_NAMES = 10
LIMITS = """## Limits

- It was judged by the score above alone, on data like that of its clients. Try it on your own first.
- It knows nothing of inputs beyond what the task in `experiment.yaml` allows.
- Nobody has looked for bias in it, or for what it has kept of the data of single people.
- Zeros make its file small (`export --to sparse`), and not its computation fast on common runtimes.
"""


def card(model: FinishedModel) -> str:
    """Return the text of a model's card."""
    parts = [_front_matter(model), _what_it_is(model)]
    if model.coefficients:
        parts.append(_coefficients(model.coefficients))
    if model.blueprint:
        parts.append(_use(model.blueprint))
    return "\n".join([*parts, LIMITS])


def _front_matter(model: FinishedModel) -> str:
    known = {
        "library_name": LIBRARY,
        "tags": ["federated-learning", *(["sparse"] if model.density < 1 else []), model.task, model.algorithm],
        "metrics": [model.metric.removeprefix("test_")],
    }
    return f"---\n{write_yaml(known)}---\n"


def _what_it_is(model: FinishedModel) -> str:
    experiment, blueprint = model.experiment, model.blueprint
    rows = {
        "data": f"{model.data_name}, {experiment.clients} clients",
        "method": f"`{model.algorithm}`, {experiment.rounds} rounds, seed {experiment.seed}",
        model.metric: "not measured" if model.score is None else f"{model.score:.4f}",
        "density": f"{model.density:.3g}: the share of the weights that is not zero",
        "tensors": _first([f"`{name}` {list(one.shape)}" for name, one in model.tensors.items()]),
    }
    if blueprint:
        rows["scaling"] = blueprint.scaling
    if blueprint and blueprint.classes:
        rows["classes"] = _first(blueprint.classes)
    lines = "\n".join(f"| {name} | {_cell(text)} |" for name, text in rows.items())
    return (
        f"# {experiment.name}\n\nA model for the task `{model.task}`, trained by federated learning. "
        f"All settings are in `experiment.yaml`, every round in `rounds.jsonl`.\n\n| | |\n|---|---|\n{lines}\n"
    )


def _coefficients(coefficients: Coefficients) -> str:
    lines = "\n".join(f"| {_cell(one.name)} | {one.value:.4g} |" for one in coefficients.first(MOST_COEFFICIENTS))
    more = coefficients.survivors - MOST_COEFFICIENTS
    note = f"\n{more} smaller ones are in the metadata of `model.safetensors`.\n" if more > 0 else ""
    return f"## Coefficients\n\nFor each unit of a column, as it is in the data.\n\n| | |\n|---|---|\n{lines}\n{note}"


def _use(blueprint: Blueprint) -> str:
    inputs = ", ".join(f"{one.name!r}: {_one_example(one)}" for one in blueprint.inputs[:MOST_INPUTS])
    if (more := len(blueprint.inputs) - MOST_INPUTS) > 0:
        inputs += f",  # and {more} more columns\n"
    result = "probabilities" if blueprint.classes else "prediction"
    return f"""## Use

    proxskip-server predict RUN --data PATH        # RUN is this folder
    proxskip-server export RUN --to onnx           # or torch, or sparse

```python
import numpy, onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
({result},) = session.run(None, {{{inputs}}})
print({result})
```
"""


def _one_example(one: Input) -> str:
    """Return how one example of an input is written in Python."""
    if one.values:
        return f"numpy.array([{one.values[0]!r}])"
    if one.example.dim() == 1:
        return f"numpy.array([{one.example[0].item()!r}])"
    kind = str(one.example.dtype).removeprefix("torch.")
    return f"numpy.zeros({(1, *one.example.shape[1:])}, {kind!r})"


def _first(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
