"""YAML as people write it: keys, values and lists. Whatever could be larger than its text is refused."""

from __future__ import annotations

import re
from typing import Any

import yaml

from common.errors import PublicError

LONGEST_TEXT = 100_000  # characters
DEEPEST = 16  # sections and lists in each other
LONGEST_INTEGER = 20  # digits: all of 64 bits
SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER, _MERGE = "tag:yaml.org,2002:int", "tag:yaml.org,2002:merge"


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases, which a few hundred bytes of become gigabytes, and a key given twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401 - as in yaml
        event = self.peek_event()  # type: ignore[no-untyped-call]
        for what in ("anchor", "tag"):
            if getattr(event, what, None) is not None:
                raise _refused(f"{what}s and aliases are not read here: write out what is meant", event)
        if SURROGATE.search(getattr(event, "value", "")):  # it could be neither sent nor shown
            raise _refused("half of a character", event)
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"more than {DEEPEST} sections or lists in each other", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise _refused(f"the key {key.value!r} is given twice", node)
            if key.tag == _MERGE:
                raise _refused("merges (<<) are not read here: write out what is meant", node)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_short_integer(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > LONGEST_INTEGER:
            raise _refused(f"a whole number of more than {LONGEST_INTEGER} digits", node)
        return int(self.construct_yaml_int(node))


_PlainLoader.add_constructor(_INTEGER, _PlainLoader.construct_short_integer)


def read_yaml(text: str, source: str) -> object:
    """Return what a text says; errors name its source."""
    if len(text) > LONGEST_TEXT:
        raise PublicError(f"{source}: {len(text)} characters, where {LONGEST_TEXT} are the most")
    try:
        return yaml.load(text, _PlainLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise PublicError(f"{source}{line}: this is not valid YAML: {getattr(error, 'problem', error)}") from None
    except (ValueError, RecursionError) as error:
        raise PublicError(f"{source}: this cannot be read as YAML: {error}") from None


def write_yaml(mapping: dict[str, Any]) -> str:
    """Return a text that `read_yaml` reads as the same."""
    return yaml.dump(mapping, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True)


class _PlainDumper(yaml.SafeDumper):
    """Writes out what occurs twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _refused(problem: str, place: Any) -> yaml.MarkedYAMLError:  # noqa: ANN401 - an event or a node of yaml's
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)
