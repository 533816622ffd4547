"""Of Flower we use what is public, apart from one guarded shim; import-linter does not tell its modules apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
ROOMS = ("server", "client", "common", "strategies", "tests", "bench")
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy")
SHIM = "common/messages/flower.py: flwr.supercore.task_identity.TaskIdentity"


def imported_from_flower(code: str) -> Iterator[tuple[str, str]]:
    """Return what code imports of Flower: a module, and the name in it, or nothing for the module as a whole."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found = [(one.name, "") for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [(node.module or "", one.name) for one in node.names]
        else:
            continue
        yield from ((module, name) for module, name in found if module.split(".")[0] == "flwr")


def is_public(module: str, name: str) -> bool:
    return module in PUBLIC and name in import_module(module).__all__


def insides(code: str) -> list[str]:
    return [".".join(filter(None, one)) for one in imported_from_flower(code) if not is_public(*one)]


def test_only_public_modules_of_flower_are_imported() -> None:
    files = [path for room in ROOMS for path in sorted((REPOSITORY / room).rglob("*.py"))]
    found = [f"{path.relative_to(REPOSITORY)}: {one}" for path in files for one in insides(path.read_text())]
    assert found == [SHIM]


@pytest.mark.parametrize(
    "code",
    [
        "import flwr",
        "import flwr.app",  # from which anything could be taken
        "from flwr import common",
        "from flwr.app.message import Message",
        "from flwr.app import message",
        "def late():\n    from flwr.proto.message_pb2 import ObjectTree",
    ],
)
def test_what_is_not_public_is_found(code: str) -> None:
    assert len(insides(code)) == 1


def test_what_is_public_or_another_package_is_let_through() -> None:
    assert insides("from flwr.app import Message, Context\nimport flwrx\nfrom . import flwr\nimport grpc") == []
