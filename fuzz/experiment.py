"""Experiments, as a server tells its clients what it runs.

An input is a line of settings, and below it the text of an experiment or the name of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from common.errors import UserError
from common.experiment.files import load_experiment, told_experiment
from common.experiment.shipped import FOLDER, shipped_experiments
from fuzz.target import Change, Target, refused

WORDS = r'0 -1 1 true null ~ 1e400 .nan -.inf 1:2:3 2001-01-01 [] {} a.b "\uD800" "\0" *a &a << fedavg os:system'
VALUES = [
    *("", "0x" + 5_000 * "f", "9" * 5_000, "[" * 300, "x" * 300, "[1, [2]]", "{a: {b: 1}}", "&a [*a]", "{? [a] : b}"),
    *(f"!!{kind} x" for kind in ("int", "bool", "float", "timestamp", "binary", "set", "omap", "python/name:os")),
    *WORDS.split(),
]
# Tasks with lists and with keys that are free.
OWN_DATA = (
    "task:\n  name: tabular\n  target: cost\n  columns:\n    age: 0..120\n    smoker: no | yes\n",
    "task:\n  name: tabular\n  target: ill\n  classes: no | yes\n  columns: {'1': 0..1}\n  missing: indicate\n",
    "task:\n  name: image_folder\n  classes: [cat, 'no']\n  network: mobilenet_v3\n",
)
METHOD = "algorithm:\n  name: hybrid\n  density: 0.1\n  learning_rate: 1e-1\n"


def read(data: bytes) -> bool:
    """Read an experiment as a client does."""
    settings, _, told = data.decode(errors="replace").partition("\n")
    try:
        experiment = told_experiment(told, settings.split(), allowed=())
    except UserError as error:
        refused(Exception(error.public))
        return refused(error)
    assert told_experiment(experiment.to_yaml(), (), allowed=()) == experiment, "it does not come back"
    return True


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """Change, repeat, drop or move a line."""
    lines = data.decode(errors="replace").split("\n")
    place, other = random.randrange(len(lines)), random.randrange(len(lines))
    key, colon, value = lines[place].partition(": ")
    match random.randrange(6):
        case 0:
            lines[place] = f"{key}{colon}{random.choice(VALUES)}"
        case 1:
            lines[place] = f"{key}{colon}{change(value.encode()).decode(errors='replace')}"
        case 2:
            lines[place] = f"{change(key.encode()).decode(errors='replace')}: {value}"
        case 3:
            del lines[place]
        case 4:
            lines.insert(other, lines[place])
        case _:
            lines[place] = f"{random.choice(('', '  ', '    ', '- ', '? '))}{lines[place].strip()}"
    return "\n".join(lines).encode(errors="replace")


def seeds() -> Iterator[bytes]:
    """Yield the experiments that come with the program: by name, as files, and as a server tells them."""
    yield b"seed=1 rounds=5 algorithm.density=0.2\ndigits"
    for name in shipped_experiments():
        yield b"schedule.period=8\n" + (FOLDER / f"{name}.yaml").read_bytes()
        yield b"\n" + load_experiment(name).to_yaml().encode()
    yield from (f"\nname: own\nrounds: 9\nclients: 3\n{task}{METHOD}".encode() for task in OWN_DATA)


TARGET = Target(read=read, seeds=seeds, mutate=mutate)
