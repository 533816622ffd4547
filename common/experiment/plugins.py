"""Find algorithms and tasks by file name, or a user's own by `module:Class`; there is no list to edit."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from common.errors import PublicError, UserError

LONGEST_NAME = 100  # characters of it that are compared


def available(package: str) -> list[str]:
    """Return the names of all plug-ins in a package, which are its modules, without importing any."""
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return sorted(module.name for module in found if not module.ispkg)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that looks most like this one."""
    candidates = list(known)
    matches = difflib.get_close_matches(name[:LONGEST_NAME], candidates, n=1, cutoff=0.0)
    return matches[0] if matches else ", ".join(candidates)


def require_known(package: str, names: Sequence[str], what: str) -> None:
    """Refuse names that nothing in a package has, without importing any of it; a user's own are looked for later."""
    known = available(package)
    for name in names:
        if ":" not in name and name not in known:
            hint = f"the nearest is {nearest(name, known)!r}; known: {', '.join(known)}"
            raise UserError(f"unknown {what} {name!r}; {hint}")


def find(package: str, name: str, base: type) -> type[Any]:
    """Return the class behind a name; LookupError where there is none."""
    if ":" in name:
        return _users_own(name, base)
    if not name.isidentifier():
        raise LookupError(name)
    try:
        module = importlib.import_module(f"{package}.{name}")
    except Exception as error:  # whatever a plug-in under construction may raise
        if isinstance(error, ModuleNotFoundError) and error.name == f"{package}.{name}":
            raise LookupError(name) from None
        what = f"{package}/{name}.py cannot be imported"
        raise UserError(f"{what}: {error!r}", public=f"{what}; its log says why") from None
    found = _class_in(module, base)
    if found is None:
        raise LookupError(name)
    return found


def name_of(package: str, plugin: type) -> str:
    """Return the name under which `find` gives this class."""
    folder, _, module = plugin.__module__.rpartition(".")
    return module if folder == package else f"{plugin.__module__}:{plugin.__qualname__}"


def _class_in(module: ModuleType, base: type) -> type[Any] | None:
    """Return the concrete subclass of `base` that a module itself defines, if any."""
    for candidate in vars(module).values():
        if (
            inspect.isclass(candidate)
            and issubclass(candidate, base)
            and candidate.__module__ == module.__name__
            and not inspect.isabstract(candidate)
        ):
            return candidate
    return None


def _users_own(path: str, base: type) -> type[Any]:
    """Import `module:Class`, also from the folder that the program was started in."""
    module_name, _, class_name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        importlib.import_module("strategies")  # an editable install of ours would be found after all of sys.path
        sys.path.append(here)  # last: a folder of the user's may bear the name of a package of ours
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # whatever a user's module may raise
        public = f"cannot import {path!r}; its log says why"
        raise UserError(f"cannot import {path!r} from here, {here}: {error!r}", public) from None
    if not (inspect.isclass(found) and issubclass(found, base) and not inspect.isabstract(found)):
        raise PublicError(f"{path!r} is not a concrete subclass of {base.__module__}.{base.__qualname__}")
    return found
