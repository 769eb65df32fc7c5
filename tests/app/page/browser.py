"""Debian's Chromium without a window, and what the tests of the page ask of it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SHOTS = os.environ.get("PAGE_SHOTS")
"""A folder for screenshots, for people who want to look."""


class Page:
    """One browser; `driver` is selenium's."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, width: int = 1280, dark: bool = False) -> None:
        """The page in a tab that remembers nothing of earlier ones."""
        self.view(width, dark)
        self.driver.get(url)
        self.driver.execute_script("sessionStorage.clear(); localStorage.clear()")
        self.driver.get_log("browser")
        self.driver.get(url)

    def view(self, width: int = 1280, dark: bool = False) -> None:
        self.resize(width)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width: int, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def find(self, css: str) -> Any:
        return self.driver.find_element("css selector", css)

    def all(self, css: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", css)
        return found

    def text(self, css: str) -> str:
        return str(self.driver.execute_script("return document.querySelector(arguments[0]).textContent", css))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def click(self, css: str) -> None:
        self.js("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", css)
        self.find(css).click()

    def until(self, what: Callable[[], object], seconds: float = 20) -> None:
        """Until it holds; the last words of the page are in the failure."""
        deadline = time.monotonic() + seconds
        while not what():
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.text('#answer')!r}, {self.text('#told')!r}: {self.complaints()}")
            time.sleep(0.03)

    def complaints(self, network: bool = True) -> list[str]:
        """What the console has of errors and warnings; without `network`, replies with an error status are left out."""
        entries = self.driver.get_log("browser")
        return [one["message"] for one in entries if network or one["source"] != "network"]

    def violations(self) -> list[str]:
        """What axe-core finds, each with the elements."""
        if not self.js("return 'axe' in window"):
            self.js(AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(
            "const told = arguments[0]; axe.run().then((found) => told(JSON.stringify(found.violations)))"
        )
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:4]]}"
            for one in json.loads(found)
        ]

    def shoot(self, name: str, width: int = 1280) -> None:
        """Keeps the whole page as a picture where somebody wants them."""
        if SHOTS:
            self.resize(width, int(self.js("return document.documentElement.scrollHeight")))
            time.sleep(0.4)
            self.driver.save_screenshot(f"{SHOTS}/{name}-{width}.png")
            self.resize(width)


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Starts it, with a profile of its own; skips where it is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver (Debian: chromium, chromium-driver) are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    try:
        yield Page(driver)
    finally:
        driver.quit()
