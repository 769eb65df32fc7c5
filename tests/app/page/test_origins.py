"""Where tokens came from and which part of the text is theirs, as the page's own module says it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import build
from tests.app.page.browser import Page
from tests.app.page.conftest import drafting
from tests.app.web_server import WebServer

CALL = """
const [name, given, told] = arguments;
import("/page/origins.js").then((module) => told(module[name](...given)));
"""
BROKEN = "\ufffd"

CASES: list[tuple[str, list[Any], Any]] = [
    ("divided", ["ab cd", ["ab", " cd"]], ["ab", " cd"]),
    ("divided", [" a b", ["a", "b"]], [" a", " b"]),  # alone they have no space in front
    ("divided", ["é!", [BROKEN, BROKEN, "!"]], ["", "é", "!"]),
    ("divided", [f"x{BROKEN}", ["x", BROKEN]], ["x", BROKEN]),  # ended within a character
    ("divided", ["ab", ["ab", "<eos>"]], ["ab", ""]),
    ("divided", ["<eos>ab", ["<eos>", "ab"]], ["<eos>", "ab"]),
    ("divided", ["one", ["one", " two"]], ["one", ""]),  # a stop string took it away
    ("divided", ["one t", ["one", " two"]], ["one", " t"]),
    ("divided", ["", []], []),
    ("steps", [0, [], []], []),
    ("steps", [1, [], []], [{"accepted": 0, "drafted": 0, "tokens": 1}]),
    (
        "steps",
        [10, [7, 0, 2], [7, 0, 7]],  # the end came within the second step
        [
            {"accepted": 0, "drafted": 0, "tokens": 1},
            {"accepted": 7, "drafted": 7, "tokens": 8},
            {"accepted": 0, "drafted": 0, "tokens": 1},
        ],
    ),
    (
        "steps",
        [5, [4], [7]],
        [{"accepted": 0, "drafted": 0, "tokens": 1}, {"accepted": 4, "drafted": 7, "tokens": 4}],
    ),
    ("guessed", [[{"ids": [1]}, {"ids": [1, 2, 3]}], 7], [(0, 1), (2, 3)]),
    ("guessed", [[{"ids": [1]}, {"ids": [1, 2, 3, 4, 5]}], 3], [(0, 1), (3, 5)]),  # two steps at least
    ("guessed", [[{"ids": [1, 2]}, {"ids": [1, 2, 3]}], 0], [(0, 2), (0, 3)]),  # nothing is drafted
    ("firstDifference", [[1, 2], [1, 2]], None),
    ("firstDifference", [[1, 2], [1, 3]], 1),
    ("firstDifference", [[1], [1, 3]], 1),
]


@pytest.fixture(scope="module")
def opened(chromium: Page) -> Any:
    with WebServer(build(drafting())) as url:
        chromium.open(url)
        yield chromium


@pytest.mark.parametrize(("name", "given", "expected"), CASES)
def test_cases(opened: Page, name: str, given: list[Any], expected: Any) -> None:
    found = opened.driver.execute_async_script(CALL, name, given)
    if name == "guessed":
        found = [(one["accepted"], one["tokens"]) for one in found]
    assert found == expected
