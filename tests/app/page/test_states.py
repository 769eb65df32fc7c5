"""What the page says of a server that does not serve, or serves without a draft, and of what a draft is worth."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.drafts.probe import Probe
from tests.app.conftest import build
from tests.app.page.browser import Page
from tests.app.page.conftest import drafting
from tests.app.web_server import WebServer


@contextmanager
def opened(page: Page, app: FastAPI, **server: Any) -> Iterator[Page]:
    """The page of a server; in the end its console has no complaint but of replies with an error status."""
    with WebServer(app, **server) as url:
        page.open(url)
        yield page
    assert page.complaints(network=False) == []


def answers(page: Page, words: str) -> None:
    """Until the first thing on the page says so."""
    page.until(lambda: words in page.text("#answer"))


def choose(page: Page, k: str) -> None:
    """As a person does in the list of K."""
    page.js("document.querySelector('#server-k').value = arguments[0]", k)
    page.js("document.querySelector('#server-k').dispatchEvent(new Event('change'))")


def test_empty_then_measured(chromium: Page) -> None:
    """Nothing was served: the page offers to find out, and then says that it pays, by how much and why."""
    engine = drafting()
    with opened(chromium, build(engine, allow_switch=True, baseline_share=0)) as page:
        answers(page, "Not known yet")
        assert "no request has run yet" in page.text("#why")
        assert "every third with K = 0" in page.text("#measured")
        page.shoot("empty")
        page.click("#measure-run")
        page.until(lambda: page.text("#measured").startswith("Known after"), 30)
        answers(page, "Yes: whole answers come")
        # The draft and K = 0 in turns: two requests, one without, two, one ...
        assert engine.lengths[:5] == [7, 0, 7, 0, 7] and engine.k == 7
        assert "decode steps" in page.text("#equation") and "whole answers" in page.text("#equation")
        assert "instead of 1" in page.text("#why") and page.all("#equation .box.result")
        assert "measured on this server's traffic" in page.text("#notes")
        page.shoot("yes")


def test_it_does_not_pay(chromium: Page) -> None:
    engine = drafting(per_step=(2, 1, 1, 1), seconds=lambda k: 0.02 if k else 0.004)
    with opened(chromium, build(engine, allow_switch=True)) as page:
        answers(page, "Not known yet")
        page.click("#measure-run")
        answers(page, "No: whole answers come at 0.")
        page.shoot("no")
        assert page.text("#advised") == "Serve K = 0"
        page.click("#advised")
        page.until(lambda: page.text("#advised-told") == "K = 0 now, was 7.")
        answers(page, "The draft is off")
        assert engine.k == 0 and page.find("#advised-told").is_displayed()


def test_it_cannot_be_told(chromium: Page) -> None:
    """Steps last now long, now short: after all example requests the page says so, and K is what it was."""
    draws = random.Random(0)
    engine = drafting(seconds=lambda k: draws.choice((0.001, 0.02)) * (4 if k else 1))
    with opened(chromium, build(engine, allow_switch=True)) as page:
        answers(page, "Not known yet")
        page.click("#measure-run")
        page.until(lambda: "of at most 60" in page.text("#measured"))
        page.until(lambda: page.text("#measured").startswith("Still not certain after 60"), 150)
        assert "changes too much to tell; decode steps are 0." in page.text("#measured")
        answers(page, "Not certain yet: decode steps have 0.")
        assert engine.k == 7 and engine.lengths.count(0) >= 20
        page.shoot("uncertain")


def test_without_a_draft_for_a_time(chromium: Page) -> None:
    """Somebody compares: every open page says so and what comes then, and nothing on it moves or is taken back."""
    engine = drafting()
    with opened(chromium, build(engine, allow_switch=True)) as page:
        answers(page, "Not known yet")
        page.click("#measure-run")
        answers(page, "Yes")
        page.until(lambda: not page.find("#measure").is_displayed())
        shown = ("#answer", "#why", "#recommended", "#positions-title", "#compare-note")
        places = (
            "return [...document.querySelectorAll('main > *')].map((one) => one.getBoundingClientRect().top)"
        )
        before, at = [page.text(css) for css in shown], page.js(places)
        url = page.driver.current_url
        httpx.post(f"{url}drafts/k", json={"k": 0, "seconds": 60}).raise_for_status()
        page.until(lambda: page.text("#temporary").startswith("K = 0 now for a comparison, soon 7 again"))
        assert page.text("#k-told").startswith("K = 0 for ") and "then 7 again" in page.text("#k-told")
        assert [page.text(css) for css in shown] == before and page.js(places) == at
        assert page.js("return document.querySelector('#server-k').value") == "7"
        assert page.find("#compare").is_displayed()
        page.shoot("comparing")
        httpx.post(f"{url}drafts/k", json={"k": 0}).raise_for_status()
        answers(page, "The draft is off")
        assert page.text("#temporary") == ""


def test_auto_says_what_it_does(chromium: Page) -> None:
    with opened(chromium, build(drafting(k=3), allow_switch=True)) as page:
        page.until(lambda: page.text("#k-told") == "K = 3 for every request of this server.")
        page.js("document.querySelector('#prompt').focus()")
        choose(page, "auto")
        page.until(lambda: page.text("#k-told").startswith("auto: the server moves K"))
        assert page.text("#k-told").endswith("K = 3 at the moment.")
        assert page.text("#server-k option") == "auto: K = 3 now"


def test_the_slider_tells_of_every_k(chromium: Page) -> None:
    engine = drafting()
    with opened(chromium, build(engine, allow_switch=True)) as page:
        page.until(lambda: page.find("#measure").is_displayed())
        page.click("#measure-run")
        answers(page, "Yes")
        page.until(lambda: page.text("#k-speedup") != "–")
        at_seven = page.text("#k-length"), page.text("#k-speedup")
        page.find("#k").send_keys("\ue012" * 4)  # the left arrow
        page.until(lambda: page.text("#k-value") == "K = 3")
        assert (page.text("#k-length"), page.text("#k-speedup")) != at_seven
        assert 1 < float(page.text("#k-length")) < float(at_seven[0])
        assert page.text("#k-seconds-note") == "between measured K"
        assert len(page.all("#survival rect.kept")) == 3 and len(page.all("#survival rect.rest")) == 4
        page.click("#serve-k")
        page.until(lambda: page.text("#served") == "K = 3 now, was 7.")
        assert engine.k == 3
        page.until(lambda: page.text("#serve-k") == "K = 3 is served")
        page.js("document.querySelector('#server-k').focus()")
        choose(page, "0")
        answers(page, "The draft is off: K = 0")
        page.shoot("off")


def test_loading(chromium: Page) -> None:
    app, go = build(drafting()), threading.Event()
    factory = app.state.gateway._factory

    def slow(plan: Any) -> Any:
        plan.progress("weights", "half of them")
        go.wait()
        return factory(plan)

    app.state.gateway._factory = slow
    try:
        with opened(chromium, app, at_once=True) as page:
            answers(page, "Loading: weights, ")
            before = page.text("#answer")
            assert not page.find("#run").is_enabled() and page.text("#state") == "loading"
            page.until(lambda: page.text("#answer") != before)
            assert page.text("#answer").startswith("Loading: weights, ")
            page.shoot("loading")
            go.set()
            answers(page, "Not known yet")
            assert page.find("#run").is_enabled()
    finally:
        go.set()


@pytest.mark.parametrize(
    ("phase", "words"),
    [("draining", "Draining: the server is shutting down."), ("dead", "Dead: the engine is lost.")],
)
def test_the_end_of_a_server(chromium: Page, phase: str, words: str) -> None:
    app = build(drafting())
    with opened(chromium, app) as page:
        answers(page, "Not known yet")
        app.state.gateway.phase = phase
        answers(page, words)
        assert not page.find("#run").is_enabled()
        page.shoot(phase)
        app.state.gateway.phase = "ready"


def test_offline_and_back(chromium: Page) -> None:
    page = chromium
    with WebServer(build(drafting())) as url:
        page.open(url)
        answers(page, "Not known yet")
    answers(page, "Offline: the server does not answer.")
    page.shoot("offline")
    assert page.complaints(network=False) == []


def test_no_draft(chromium: Page) -> None:
    with opened(chromium, build(drafting(k=0))) as page:
        answers(page, "No draft is served.")
        assert not page.find("#curve").is_displayed() and page.find("#draft").is_displayed()
        page.click("#run")
        page.until(lambda: page.text("#told").startswith("Done"))
        assert "No draft took part" in page.text("#told")
        page.shoot("none")


def test_a_key_is_needed(chromium: Page) -> None:
    with opened(chromium, build(drafting(), api_keys="secret")) as page:
        answers(page, "A key is needed.")
        page.shoot("key")
        page.find("#api-key").send_keys("wrong\n")
        answers(page, "That key was not accepted.")
        page.find("#api-key").send_keys("secret\n")
        answers(page, "Not known yet")
        assert page.js("return sessionStorage.length") == 1 and page.js("return localStorage.length") == 0
        page.click("#run")
        page.until(lambda: page.text("#told").startswith("Done"))


def test_a_useless_draft_and_others_that_do_not_fit(chromium: Page, tmp_path: Path) -> None:
    """What comes from files and from the server is text, whatever it looks like."""
    evil = tmp_path / "<img src=x onerror=alert(1)>"
    evil.mkdir()
    (evil / "config.json").write_text('{"speculators_config": "<b>"}')
    app = build(drafting(), checkpoints_dir=tmp_path)
    with opened(chromium, app) as page:
        app.state.gateway.probe = Probe(6, 100, 700, 3)
        page.open(page.driver.current_url)
        page.until(lambda: "below 1.1" in page.text("#warning"))
        assert "does not fit" in page.text("#available-rows") and evil.name in page.text("#available-rows")
        assert not page.all("main img, main b i")
        page.shoot("misfit")


def test_a_hidden_page_asks_nothing(chromium: Page) -> None:
    app, asked = build(drafting()), []

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope.get("path"))
        await app(scope, receive, send)

    with WebServer(app, wrapped=counting) as url:
        chromium.open(url)
        answers(chromium, "Not known yet")
        first = chromium.driver.current_window_handle
        chromium.driver.switch_to.new_window("tab")
        seen = len(asked)
        chromium.driver.execute_async_script("setTimeout(arguments[0], 2500)")
        chromium.driver.close()
        chromium.driver.switch_to.window(first)
        assert len(asked) <= seen + 3  # the look that was under way
        chromium.until(lambda: len(asked) > seen + 3)
