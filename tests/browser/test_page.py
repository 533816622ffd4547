"""What a reader sees and does: list, run, compare, on a desk and on a phone, in light and in dark."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.watching import HOSTILE
from tests.browser.window import DESKTOP, PHONE, Window

pytestmark = pytest.mark.browser

VIEWS = ("#/", "#/run/sparse", "#/compare/sparse,dense")
HOSTILE_ID = HOSTILE.replace("/", "|")


def open_view(window: Window, address: str, view: str) -> None:
    window.open(address + view)
    window.wait(lambda: window.all("main .panel"))


def test_the_list_leads_to_a_run(window: Window, address: str) -> None:
    open_view(window, address, "#/")
    window.find("a[title='sparse']").click()
    window.wait_for_text("h1", "sparse")
    assert "20 / 20" in window.text(".figures")
    assert "sparse/model.safetensors" in window.text(".next")
    assert window.text("nav [aria-current]") == "sparse"


def test_the_list_is_filtered_and_sorted(window: Window, address: str) -> None:
    open_view(window, address, "#/")
    window.find(".filter").send_keys("fedavg")
    window.wait(lambda: len(window.all("tbody tr")) == 1)
    assert window.text("tbody .run a") == "dense"
    window.find(".filter").send_keys(Keys.BACKSPACE * 6)
    window.wait(lambda: len(window.all("tbody tr")) == 3)

    def scores() -> list[float]:
        return [float(cell.text.split()[0]) for cell in window.all("tbody .score")]

    head = window.find("th.score button")
    head.click()
    assert scores() == sorted(scores(), reverse=True)
    head.send_keys(Keys.ENTER)  # by the keyboard alone, too
    assert scores() == sorted(scores())
    assert window.find("th.score").get_attribute("aria-sort") == "ascending"


def test_ticked_runs_are_compared(window: Window, address: str) -> None:
    open_view(window, address, "#/")
    assert window.text(".actions a") == "Tick runs to compare"
    for name in ("sparse", "dense"):
        window.find(f"input[aria-label='Compare {name}']").send_keys(Keys.SPACE)
    window.wait_for_text(".actions a", "Compare 2")
    window.find(".actions a").click()
    window.wait_for_text(".answer", "To reach")
    assert "against bytes sent per client" in str(window.find(".chart").get_attribute("aria-label"))
    window.find("input[name='compare-axis'][value='round']").send_keys(Keys.SPACE)
    window.wait_for_text(".answer", "rounds")
    assert window.text(".reach h2") == "Rounds"
    assert "algorithm.density" in window.text(".differences")


def test_a_hostile_name_is_text(window: Window, address: str) -> None:
    open_view(window, address, "#/")
    window.find(f'a[title="{HOSTILE_ID}"]').click()
    window.wait_for_text("h1", HOSTILE_ID)
    assert HOSTILE in window.text(".events")
    assert HOSTILE in window.text(".clients")
    assert HOSTILE in window.text(".strip .names")
    assert not window.all("main script")
    assert window.driver.title != "broken"


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [PHONE, 700, 1024, DESKTOP])
def test_nothing_is_wider_than_the_window(window: Window, address: str, view: str, width: int) -> None:
    window.resize(width)
    open_view(window, address, view)
    assert window.ask("return document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_refused_by_the_policy_of_the_page(window: Window, address: str, view: str) -> None:
    open_view(window, address, view)
    window.wait(lambda: window.text(".feed").startswith("live"))
    assert window.complaints() == []


def test_light_and_dark_differ_also_in_the_chart(window: Window, address: str) -> None:
    open_view(window, address, "#/run/sparse")
    window.wait(lambda: window.all(".plot canvas"))

    def looks() -> tuple[str, str]:
        ground = window.find("body").value_of_css_property("background-color")
        return ground, str(window.ask("return document.querySelector('.plot canvas').toDataURL()"))

    light = looks()
    window.prefer("dark")
    window.wait(lambda: looks()[0] != light[0] and looks()[1] != light[1])
    window.prefer("light")
    window.wait(lambda: looks() == light)


def test_labels_at_curves_do_not_overlap(window: Window, address: str) -> None:
    open_view(window, address, "#/")
    ends = [{"x": 500, "y": 100 + place % 2, "width": 120} for place in range(8)]
    line = [[x, 100] for x in range(0, 500, 5)]
    spots = window.ask("return labels.place(arguments[0], {width: 640, height: 300}, [arguments[1]])", ends, [*line])
    placed = [spot for spot in spots if spot]
    assert len(placed) == len(ends)
    for place, one in enumerate(placed):
        for other in placed[:place]:
            apart = abs(one["left"] - other["left"]) >= 120 or abs(one["top"] - other["top"]) >= 15
            assert apart, (one, other)


def test_a_run_that_is_not_there_is_said_to_be(window: Window, address: str) -> None:
    window.open(f"{address}#/run/nobody")
    window.wait_for_text("main", "no such run")
    window.find("main").find_element(By.LINK_TEXT, "All runs").click()
    window.wait_for_text("h1", "Runs")
