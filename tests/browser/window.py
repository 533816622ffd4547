"""A window of a real browser, and what tests ask of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

DESKTOP, PHONE = 1440, 390
HEIGHT = 900
SECONDS = 30.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class Window:
    """One page, as its reader meets it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Go to an address as if for the first time."""
        self.driver.get("about:blank")
        self.driver.get(address)

    def ask(self, script: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever the page answers
        """Run a function's body in the page."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def text(self, selector: str) -> str:
        """Return what a part says, or nothing where there is none."""
        return str(self.ask("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def wait(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait until the page is so."""
        waiting = WebDriverWait(self.driver, seconds, 0.05, ignored_exceptions=[StaleElementReferenceException])
        waiting.until(lambda _: condition(), f"the page says: {self.text('body')[:800]}")

    def wait_for_text(self, selector: str, text: str) -> None:
        self.wait(lambda: text in self.text(selector))

    def resize(self, width: int) -> None:
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """Prefer light or dark, as a reader's system does."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def complaints(self) -> list[str]:
        """Return what the browser has found wrong since it was last asked: errors, refused styles and scripts."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def new_window(profile: Path) -> Iterator[Window]:
    """Start a browser of its own; without one there is nothing to test."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.skip("needs chromium and chromedriver (Debian: apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield Window(driver)
    finally:
        driver.quit()
