"""The reference of commands, from the programs themselves: `make reference` writes it, docs/reference/cli.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
from typer.main import get_command

from client.__main__ import app as client_app
from server.__main__ import app as server_app

PROGRAMS = {"proxskip-server": server_app, "proxskip-client": client_app}
HEAD = """# Commands and options

Made from the programs by `make reference`. `COMMAND --help` says the same. An option with a * must be given.
"""


def cli_reference() -> str:
    """Return the whole page."""
    sections = [HEAD]
    for name, app in PROGRAMS.items():
        command = get_command(app)
        sections += _sections(command, click.Context(command, info_name=name), "##")
    return "\n".join(sections)


def leaf_commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield the commands that do something, each with its context, which knows its whole name."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from leaf_commands(inner, click.Context(inner, parent=context, info_name=name))
    else:
        yield command, context


def _sections(command: click.Command, context: click.Context, heading: str) -> Iterator[str]:
    yield f"{heading} {context.command_path}\n\n{_purpose(command)}\n{_options(command, context)}"
    for inner, inner_context in leaf_commands(command, context):
        usage = " ".join([inner_context.command_path, *inner.collect_usage_pieces(inner_context)])
        title = f"{heading}# {inner_context.command_path}\n\n`{usage}`"
        yield f"{title}\n\n{_purpose(inner)}\n{_options(inner, inner_context)}"


def _purpose(command: click.Command) -> str:
    """Return what a command is for, as its docstring has it."""
    return (command.help or "").replace("\f", "").strip() + "\n"


def _options(command: click.Command, context: click.Context) -> str:
    rows = [_row(one, context) for one in command.get_params(context) if _is_shown(one)]
    return "".join(["| | | default |\n|---|---|---|\n", *rows]) if rows else ""


def _is_shown(parameter: click.Parameter) -> bool:
    return not getattr(parameter, "hidden", False) and parameter.name != "help"


def _row(parameter: click.Parameter, context: click.Context) -> str:
    """Return the line of a table for an argument or an option."""
    taken = parameter.make_metavar(context)
    name = taken if isinstance(parameter, click.Argument) else _named(parameter, taken)
    must = "*" if parameter.required else ""
    help_text = getattr(parameter, "help", None) or ""
    cells = (f"`{name}`{must}", help_text + _bounds(parameter), _default(parameter))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _named(parameter: click.Parameter, taken: str) -> str:
    is_flag = getattr(parameter, "is_flag", False)
    return "/".join(parameter.opts) + ("" if is_flag else f" {taken.split(' ')[0]}")


def _bounds(parameter: click.Parameter) -> str:
    kind = parameter.type
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    ends = [f"at least {kind.min:g}" if kind.min is not None else "", f"at most {kind.max:g}" if kind.max else ""]
    return f" ({', '.join(end for end in ends if end)})"


def _default(parameter: click.Parameter) -> str:
    value = parameter.default
    return "" if value is None or value is False or callable(value) or parameter.required else f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(cli_reference())
