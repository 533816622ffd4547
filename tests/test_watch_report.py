"""report.html, and what `report` prints and draws."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from server.runs.figure import apart
from server.runs.report import PAPER, SENT, VALUES, compared, count_for
from server.runs.run_folder import RunFolder
from server.watch.report import page_with, write_report
from tests.harness.processes import proxskip_server
from tests.harness.small_disk import needs_root, remount, small_disk
from tests.harness.watch import HOSTILE, deployed_run, experiment_of, simulated_run, watch


class Page(HTMLParser):
    """What a browser finds in a page: its elements, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data

    @property
    def embedded(self) -> Any:  # noqa: ANN401 - JSON
        places = [attributes.get("id") for tag, attributes in self.elements if tag == "script"]
        return json.loads(self.scripts[places.index("embedded")])


def test_a_report_is_one_file_that_asks_nobody(tmp_path: Path) -> None:
    folder = deployed_run(tmp_path / "run").path
    write_report(folder, pytest.fail)
    text = (folder / "report.html").read_text()
    page = Page(text)
    addresses = [value for _, one in page.elements for name, value in one.items() if name in ("src", "href")]
    assert [one for one in addresses if not (one or "").startswith(("data:", "#"))] == []
    assert "default-src 'none'" in text
    (run,) = page.embedded["runs"]
    assert run["round"] == 6
    assert HOSTILE in [row["name"] for row in run["clients_table"]]
    assert page.embedded["compare"] is None
    assert HOSTILE not in text


@pytest.mark.parametrize("evil", ["</script><script>alert(1)</script>", "<!--<script>", "]]>", "\u2028", "&lt;"])
def test_nothing_in_the_data_ends_its_element(evil: str) -> None:
    page = Page(page_with({"runs": [{"name": evil}]}))
    clean = Page(page_with({"runs": [{"name": "run"}]}))
    assert page.embedded == {"runs": [{"name": evil}]}
    assert len(page.scripts) == len(clean.scripts)
    assert page.scripts[1:] == clean.scripts[1:]


def test_every_file_of_the_page_is_in_the_report() -> None:
    text = page_with({"runs": []})
    assert not re.search(r'<script src|rel="stylesheet"', text)
    assert text.index('id="embedded"') < text.index("uPlot=")


def test_watch_gives_the_same_report_to_take_away(tmp_path: Path) -> None:
    simulated_run(tmp_path / "a")
    simulated_run(tmp_path / "b", "algorithm.name=fedavg")
    with watch(tmp_path) as visitor:
        answer = visitor.get("/report?id=a&id=b")
    assert answer.headers["content-disposition"] == "attachment; filename=report.html"
    embedded = Page(answer.text).embedded
    assert [run["id"] for run in embedded["runs"]] == ["a", "b"]
    assert embedded["compare"]["title"] == "digits, two methods"


def test_a_simulation_leaves_a_report(tmp_path: Path) -> None:
    folder = simulated_run(tmp_path / "run").path
    (run,) = Page((folder / "report.html").read_text()).embedded["runs"]
    assert (run["state"], run["how"]) == ("finished", "simulated")


@needs_root
def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4096) as disk:
        folder = simulated_run(disk / "run").path
        remount(disk, "ro")
        said: list[str] = []
        write_report(folder, said.append)
    assert len(said) == 1
    assert said[0].startswith("no report.html: cannot write ")


def test_report_puts_runs_side_by_side_in_a_table_and_a_page_or_a_figure(tmp_path: Path) -> None:
    simulated_run(tmp_path / "sparse")
    simulated_run(tmp_path / "dense", "algorithm.name=fedavg")
    as_page = proxskip_server("report", "sparse", "dense", "--output", "both.html", cwd=tmp_path)
    assert as_page.returncode == 0, as_page.stderr
    assert "uploads per client (kB, as sent; bits: per kept value)" in " ".join(as_page.stdout.split())
    assert Page((tmp_path / "both.html").read_text()).embedded["compare"]
    as_figure = proxskip_server("report", "sparse", "dense", cwd=tmp_path)
    assert as_figure.stdout.endswith("figure: comparison.png\n")
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    wrong = proxskip_server("report", "sparse", "--output", "nowhere/figure.png", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: cannot write nowhere/figure.png: ")


def test_two_counts_of_bytes_are_never_mixed(tmp_path: Path) -> None:
    sent = simulated_run(tmp_path / "sent").rounds()
    not_encoded = simulated_run(tmp_path / "values", "codec.encode_in_simulation=false").rounds()
    assert count_for({"sent": sent}, paper_bits=False) == SENT
    both = {"sent": sent, "values": not_encoded}
    assert count_for(both, paper_bits=False) == VALUES
    assert count_for(both, paper_bits=True) == PAPER
    for count, expected in ((VALUES, f"{6 * 65 * 4 / 1000:.1f}"), (PAPER, f"{6 * 65 * 32 / 1e6:.3f}")):
        rows = compared(both, "test_accuracy", count, densities=dict.fromkeys(both, 0.1))
        assert [count.text(row.upload_bits) for row in rows] == [expected] * 2


def test_labels_stay_apart_and_in_order() -> None:
    placed = apart([0.99, 0.2, 0.98, 1.4, 0.21], 0.1)
    order = sorted(range(5), key=placed.__getitem__)
    assert order == [1, 4, 2, 0, 3]
    heights = sorted(placed)
    assert all(upper - lower >= 0.1 - 1e-9 for lower, upper in pairwise(heights))
    assert max(placed) <= 1.0


def test_a_run_of_which_nothing_is_known_yet_has_a_report(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", experiment_of(), "data").path
    write_report(folder, pytest.fail)
    (run,) = Page((folder / "report.html").read_text()).embedded["runs"]
    assert run["score"] is None
