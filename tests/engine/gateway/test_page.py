"""The live page over the real engine: its tokens and colours are what the server says of the same request."""

from __future__ import annotations

import pytest

from tests.app.page.browser import Page
from tests.app.page.conftest import chromium  # noqa: F401
from tests.app.page.test_playground import spans
from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import PROMPT

pytestmark = pytest.mark.engine


def test_a_run(server: GatewayProcess, chromium: Page) -> None:  # noqa: F811
    page = chromium
    expected = server.complete(PROMPT, max_tokens=64).json()
    spec = expected["metrics"]["speculative_decoding"]
    page.open(server.url)
    page.until(lambda: page.find("#run").is_enabled())
    page.click("#run")
    page.until(lambda: page.text("#told").startswith("Done"))
    shown = spans(page)
    assert "".join(text for kind, text in shown if "silent" not in kind) == expected["choices"][0]["text"]
    assert sum(kind.startswith("accepted") for kind, _ in shown) == spec["num_accepted_draft_tokens"]
    assert sum("step" in kind for kind, _ in shown) == 1 + spec["num_spec_steps"]
    page.until(lambda: page.find("#positions").is_displayed())
    assert page.complaints() == []
