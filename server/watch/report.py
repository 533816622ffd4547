"""report.html: the page with its data, its style and its scripts inside, one file to keep or to mail."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from common.say import Say
from common.storage.replace import replace_file
from server.runs.run_folder import REPORT
from server.watch.comparison import compare
from server.watch.run_view import Json, RunView

PAGE = Path(__file__).parent / "page"
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"  # asks nobody

_STYLE = re.compile(r'<link rel="stylesheet" href="([^":]+)">')
_SCRIPT = re.compile(r'<script src="([^":]+)"></script>')


def write_report(folder: Path, say: Say) -> None:
    """Write the report of a run into its folder; a run is none the worse for one that cannot be written."""
    try:
        replace_file(folder / REPORT, report_of([RunView.read(folder.name, folder)]).encode())
    except UserError as error:
        say(f"no {REPORT}: {error}")


def report_of(views: Sequence[RunView]) -> str:
    """Return the page with one run, or with several and their comparison."""
    compared = compare(views) if len(views) > 1 else None
    return page_with({"runs": [view.whole() for view in views], "compare": compared})


def page_with(content: Json) -> str:
    """Return the page as one file; nothing in the data can end the element that it is in."""
    data = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    page = page.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">', 1)
    page = _STYLE.sub(lambda found: f"<style>\n{_file(found[1])}</style>", page)
    first = f'<script id="embedded" type="application/json">{data}</script>\n'
    scripts = _SCRIPT.split(page)
    return (
        scripts[0]
        + first
        + "".join(
            f"<script>\n{_file(name)}</script>{rest}" for name, rest in zip(scripts[1::2], scripts[2::2], strict=True)
        )
    )


def _file(name: str) -> str:
    """Return one of the page's files; the end of an element in a text of it is written another way."""
    return (PAGE / name).read_text(encoding="utf-8").replace("</script", r"<\/script").replace("</style", r"<\/style")
