"""Light and dark, on a desk and on a phone: axe-core finds nothing, nothing sticks out, and no mouse is needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.app.conftest import build
from tests.app.page.browser import Page
from tests.app.page.conftest import drafting
from tests.app.web_server import WebServer

VIEWS = [(width, dark) for width in (1280, 390) for dark in (False, True)]


def check(page: Page, name: str, views: Sequence[tuple[int, bool]] = VIEWS) -> None:
    """In each view."""
    for width, dark in views:
        page.view(width, dark)
        assert page.violations() == [], (width, dark)
        assert page.js("return document.documentElement.scrollWidth - innerWidth") <= 0, (width, dark)
        page.shoot(f"{name}-{'dark' if dark else 'light'}", width)


def test_in_use(chromium: Page) -> None:
    page = chromium
    with WebServer(build(drafting(), allow_switch=True)) as url:
        page.open(url)
        page.until(lambda: page.find("#measure").is_displayed())
        check(page, "fresh")
        page.view()
        page.click("#measure-run")
        page.until(lambda: page.text("#answer").startswith("Yes"))
        page.click("#compare")
        page.until(lambda: page.text("#told").startswith("Equal"))
        page.js("const k = document.querySelector('#k'); k.value = 4; k.dispatchEvent(new Event('input'))")
        check(page, "used")
        assert page.complaints() == []


@pytest.mark.parametrize("phase", ["loading", "key", "none"])
def test_other_states(chromium: Page, phase: str) -> None:
    settings = {"api_keys": "secret"} if phase == "key" else {}
    page, app = chromium, build(drafting(k=0 if phase == "none" else 7), **settings)
    with WebServer(app) as url:
        if phase == "loading":
            app.state.gateway.phase = "loading"
        page.open(url)
        page.until(lambda: page.js("return document.body.dataset.state") == phase)
        check(page, phase, VIEWS[::3])
        app.state.gateway.phase = "ready"


def test_by_keyboard_alone(chromium: Page) -> None:
    """From the prompt by tabs to Run, with a frame around what has the focus; Enter runs, the theme's button turns."""
    page = chromium
    with WebServer(build(drafting())) as url:
        page.open(url)
        page.until(lambda: page.find("#run").is_enabled())
        page.find("#prompt").send_keys("")
        page.js("document.querySelector('#prompt').focus()")
        reached = []
        while "run" not in reached:
            page.driver.switch_to.active_element.send_keys("\ue004")
            reached.append(page.js("return document.activeElement.id"))
            assert page.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
            assert len(reached) < 15, reached
        assert {"max-tokens", "temperature", "seed", "stop-text"} <= set(reached)
        page.driver.switch_to.active_element.send_keys("\ue007")
        page.until(lambda: page.text("#told").startswith("Done"))
        page.js("document.querySelector('#theme').focus()")
        ground = page.js("return getComputedStyle(document.body).backgroundColor")
        page.driver.switch_to.active_element.send_keys("\ue007")
        assert page.js("return getComputedStyle(document.body).backgroundColor") != ground
        page.open(page.driver.current_url)
