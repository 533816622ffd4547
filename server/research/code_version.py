"""Which code computed a run: a digest that no comment, docstring or line break changes."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPUTING = (  # what a run gives depends on these files; settings are in its name
    "common/codec/**/*.py",
    "common/experiment/experiment.py",
    "common/learning/**/*.py",
    "common/randomness.py",
    "common/rounds/**/*.py",
    "common/tasks/**/*.py",
    "common/vectors/**/*.py",
    "strategies/*.py",
    "server/research/outcome.py",
    "server/simulation/**/*.py",
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_digest(root: Path = ROOT) -> str:
    """Return the digest of the code that computes runs; a Python that writes its syntax otherwise is other code."""
    digest = hashlib.sha256()
    for path in computing_files(root):
        digest.update(f"{path.relative_to(root).as_posix()}: {_meaning(path)}\n".encode())
    return digest.hexdigest()[:16]


def computing_files(root: Path = ROOT) -> list[Path]:
    """Return the files of the code that computes runs."""
    return sorted({path for pattern in COMPUTING for path in root.glob(pattern)})


def _meaning(path: Path) -> str:
    """Return a file's syntax tree without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            node.body.pop(0)
    return ast.dump(tree)
