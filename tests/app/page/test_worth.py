"""When the page says that the draft pays, as its own module decides it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import build
from tests.app.page.browser import Page
from tests.app.page.conftest import drafting
from tests.app.web_server import WebServer

CALL = """
const [name, given, told] = arguments;
import("/page/worth.js").then((module) => told(module[name](given)));
"""


@pytest.fixture(scope="module")
def opened(chromium: Page) -> Any:
    with WebServer(build(drafting())) as url:
        chromium.open(url)
        yield chromium


@pytest.mark.parametrize(
    ("low", "high", "overall", "said"),
    [
        (1.1, 1.3, 1.15, "yes"),
        (1.48, 9.86, 4.8, "yes"),
        (1.1, 1.3, 0.99, "even"),  # decode steps gain, what is served does not
        (0.74, 0.88, 0.8, "no"),
        (0.0, 2.13, 0.9, "even"),
        (0.97, 1.04, 0.98, "even"),
    ],
)
def test_only_the_whole_range_is_an_answer(
    opened: Page, low: float, high: float, overall: float, said: str
) -> None:
    speedup = {"value": (low + high) / 2, "low": low, "high": high, "overall": overall}
    for k, speed, expected in ((7, speedup, said), (7, None, "unknown"), (0, None, "off")):
        stats = {"k": k, "estimate": {"speedup": speed}}
        assert opened.driver.execute_async_script(CALL, "answer", stats) == expected


@pytest.mark.parametrize(("low", "high", "wide"), [(1.48, 9.86, True), (0.74, 0.88, False), (0, 0.5, True)])
def test_a_wide_range(opened: Page, low: float, high: float, wide: bool) -> None:
    assert opened.driver.execute_async_script(CALL, "wide", {"low": low, "high": high}) is wide
