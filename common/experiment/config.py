"""Nested mappings -> frozen dataclasses; whatever does not fit is one clear line, before anything starts.

A dataclass describes its section of the YAML file by its fields: the type, a `Range` where numbers are bounded, the
default where there is one. A field whose class has a `plugin_package` takes the class that the section's `name` says.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from common.errors import PublicError, UserError
from common.experiment import plugins
from common.experiment.plugins import nearest
from common.ranges import LARGEST, SMALLEST

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """Where the values come from: a file, the keys that `--set` replaced, and what they may make us import."""

    file: str
    replaced: frozenset[str] = frozenset()
    allowed: Collection[str] | None = None  # each module:Class; None: any, as the user of this machine wrote the file

    def refuse(self, key: str, complaint: str) -> NoReturn:
        """Raise the error about one key."""
        raise PublicError(f"{self.named(key)}{complaint}")

    def named(self, key: str) -> str:
        """Say where a key is."""
        by_setting = any(replaced == key or replaced.startswith(f"{key}.") for replaced in self.replaced)
        origin = f"{self.file} with --set" if by_setting else self.file
        return f"{origin}: {key}"

    def allows(self, plugin: str) -> bool:
        """Say whether a class may be imported: one of ours, or one that the owner of this machine has named."""
        return ":" not in plugin or self.allowed is None or plugin in self.allowed


def read(kind: type[T], section: object, source: Source, key: str = "") -> T:
    """Build a dataclass from a mapping, checking every key, type and range."""
    if not isinstance(section, Mapping):
        source.refuse(key or "the experiment", f": expected a section of keys and values, got {section!r}")
    values = dict(section)
    owner = ""
    if hasattr(kind, "plugin_package"):
        owner = f" of {values.get('name')}"
        kind = _chosen_plugin(kind, values, source, key)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind, include_extras=True)
    allowed = [*(["name"] if owner else []), *known]
    for name in values:
        if name not in known:
            closest = _join(key, _in_a_section(name, hints) or nearest(str(name), allowed))
            complaint = f"is an unknown key{owner}; the nearest is {closest}; known: {', '.join(allowed)}"
            source.refuse(_join(key, str(name)), f" = {values[name]!r} {complaint}")
    arguments = {
        name: _read_field(hints[name], field, values, source, _join(key, name)) for name, field in known.items()
    }
    try:
        return kind(**{name: value for name, value in arguments.items() if value is not MISSING})
    except ValueError as error:  # a check across fields, in __post_init__
        source.refuse(key or "the experiment", f": {error}")


def _in_a_section(name: object, hints: Mapping[str, Any]) -> str | None:
    """Return where a key belongs that was written without its section."""
    sections = {section: fields(hint) for section, hint in hints.items() if is_dataclass(hint)}
    return next((f"{one}.{name}" for one, known in sections.items() if name in {key.name for key in known}), None)


def to_mapping(instance: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the mapping from which `read` builds the same dataclass again."""
    package = getattr(instance, "plugin_package", None)
    mapping: dict[str, Any] = {"name": plugins.name_of(package, type(instance))} if package else {}
    for field in fields(instance):
        value = getattr(instance, field.name)
        mapping[field.name] = to_mapping(value) if is_dataclass(value) else value
    return mapping


def _read_field(hint: Any, field: Field[Any], values: dict[str, Any], source: Source, key: str) -> Any:  # noqa: ANN401
    if field.name in values:
        value = values[field.name]
    elif field.default is not MISSING or field.default_factory is not MISSING:
        return MISSING
    elif is_dataclass(hint):
        value = {}
    else:
        source.refuse(key, f": this key is missing; it takes {describe(hint)}")
    if is_dataclass(hint):
        return read(cast("type[Any]", hint), value, source, key)
    return _read_leaf(hint, value, source, key)


def _read_leaf(hint: Any, value: object, source: Source, key: str) -> Any:  # noqa: ANN401
    converted = _convert(hint, value)
    if converted is MISSING:
        source.refuse(key, f" = {value!r} is not allowed; it takes {describe(hint)}")
    return converted


def _convert(hint: Any, value: Any) -> Any:  # noqa: ANN401
    """Return the value as the type that the hint asks for, or MISSING where it does not fit."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *bounds = get_args(hint)
        converted = _convert(inner, value)
        return converted if converted is MISSING or all(converted in bound for bound in bounds) else MISSING
    if origin is Literal:
        return value if value in get_args(hint) else MISSING
    if origin in (Union, types.UnionType):
        options = (_convert(option, value) for option in get_args(hint))
        return next((option for option in options if option is not MISSING), MISSING)
    if origin in (tuple, Mapping):
        return _convert_many(origin, get_args(hint), value)
    return _convert_scalar(hint, value)


def _convert_many(origin: type, hints: tuple[Any, ...], value: Any) -> Any:  # noqa: ANN401
    """Return a list as a tuple, or a section of free keys as a dictionary."""
    if origin is tuple and isinstance(value, list | tuple):
        converted = tuple(_convert(hints[0], one) for one in value)
        return MISSING if MISSING in converted else converted
    if origin is Mapping and isinstance(value, Mapping):
        pairs = {_convert(hints[0], key): _convert(hints[1], one) for key, one in value.items()}
        return MISSING if MISSING in (*pairs, *pairs.values()) else pairs
    return MISSING


def _convert_scalar(kind: type, value: Any) -> Any:  # noqa: ANN401
    if kind is float and not isinstance(value, bool) and isinstance(value, int | float | str):
        try:  # YAML reads 1e-5, without a dot, as text
            number = float(value)
        except (ValueError, OverflowError):
            return MISSING
        return number if number == 0 or SMALLEST < abs(number) < LARGEST else MISSING
    if kind is int and isinstance(value, bool):
        return MISSING
    return value if isinstance(value, kind) else MISSING


def describe(hint: Any) -> str:  # noqa: ANN401
    """Say in words what a hint allows."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *bounds = get_args(hint)
        return " ".join([describe(inner), *map(str, bounds)])
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if origin in (Union, types.UnionType):
        return " or ".join(map(describe, get_args(hint)))
    if origin is tuple:
        return f"a list, each of them {describe(get_args(hint)[0])} (in quotes where YAML reads it otherwise)"
    if origin is Mapping:
        return f"a section of names, each with {describe(get_args(hint)[1])} (in quotes where YAML reads it otherwise)"
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", types.NoneType: "null"}
    return words.get(hint, "a section")


def _chosen_plugin(base: type[T], values: dict[str, Any], source: Source, key: str) -> type[T]:
    """Take `name` out of a section and return the class that it stands for."""
    package: str = base.plugin_package  # type: ignore[attr-defined]
    name = values.pop("name", None)
    try:
        if not isinstance(name, str):
            raise LookupError(name)
        if not source.allows(name):  # before anything of it is imported
            option = f"--allow-{key} {name}"
            source.refuse(_join(key, "name"), f" = {name!r} is not allowed by this client's owner ({option})")
        return cast("type[T]", plugins.find(package, name, base))
    except LookupError:
        known = plugins.available(package)
        given = "is missing" if name is None else f"= {name!r} is unknown; the nearest is {nearest(str(name), known)!r}"
        source.refuse(_join(key, "name"), f" {given}; known: {', '.join(known)}, or your own module:Class")
    except UserError as error:
        where = source.named(_join(key, "name"))
        raise UserError(f"{where}: {error}", public=f"{where}: {error.public}") from None


def _join(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name
