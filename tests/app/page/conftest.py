"""One browser for all tests of the page, and a server with a draft whose numbers are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.fake_engine import EOS, FakeEngine, tokens
from tests.app.page.browser import Page, browser

ANSWER = "Speed is distance divided by time: 30 miles per hour."
PER_STEP = (8, 5, 2, 8, 3, 1)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def drafting(**fields: Any) -> FakeEngine:
    """An engine whose draft pays: a step takes 6 ms at K = 7 and 4 ms without."""
    chosen: dict[str, Any] = {
        "script": lambda request, sample: [*tokens(ANSWER), EOS],
        "k": 7,
        "per_step": PER_STEP,
        "first_alone": True,
        "seconds": lambda k: 0.004 + (0.0006 + 0.0002 * k if k else 0),
        **fields,
    }
    return FakeEngine(**chosen)
