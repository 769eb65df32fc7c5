"""A person at the playground: tokens in their colours, bars that move, a stop, and the same without the draft."""

from __future__ import annotations

import re
import time

import httpx
import pytest

from tests.app.conftest import build
from tests.app.fake_engine import EOS, tokens
from tests.app.page.browser import Page
from tests.app.page.conftest import ANSWER, PER_STEP, drafting
from tests.app.web_server import WebServer


def spans(page: Page, column: str = "#one") -> list[tuple[str, str]]:
    """Class and text of each token shown."""
    script = (
        "return [...document.querySelectorAll(arguments[0])].map((one) => [one.className, one.textContent])"
    )
    return [(kind, text) for kind, text in page.js(script, f"{column} .answer span")]


def bars(page: Page) -> list[str]:
    """Length of each position's bar."""
    found: list[str] = page.js(
        "return [...document.querySelectorAll('.bar.all')].map((one) => one.style.inlineSize)"
    )
    return found


def expected(total: int) -> list[str]:
    """Origin of each token by the engine's script: the first alone, then of each step all but the last accepted; the
    fake engine takes the token that ends the answer for the verifier's.
    """
    found, step = ["verifier"], 1  # the engine's turns count the step that admits
    while len(found) < total:
        size = PER_STEP[step % len(PER_STEP)]
        found += ["accepted"] * (size - 1) + ["verifier"]
        step += 1
    return [*found[: total - 1], "verifier"]


def test_a_prompt_and_its_coloured_answer(chromium: Page) -> None:
    page, engine = chromium, drafting()
    with WebServer(build(engine)) as url:
        page.open(url)
        page.until(lambda: page.find("#run").is_enabled())
        assert page.find("#positions").is_displayed() is False
        page.find("#prompt").clear()
        page.find("#prompt").send_keys("What is its average speed?")
        page.find("#run").click()
        page.until(lambda: page.text("#told").startswith("Done"))
        shown = spans(page)
        assert "".join(text for kind, text in shown if "silent" not in kind) == ANSWER
        assert [kind.split()[0] for kind, _ in shown] == expected(len(tokens(ANSWER)) + 1)
        page.until(lambda: page.find("#positions").is_displayed())
        before = bars(page)
        assert len(before) == 7 and before[0] != "0%"
        engine.per_step = (2, 1)
        page.click("#run")
        page.until(lambda: bars(page) != before)
        assert page.complaints() == []


def test_a_stream_is_coloured_while_it_comes_and_stopped(chromium: Page) -> None:
    page, engine = chromium, drafting(script=lambda request, sample: tokens("long " * 60), delay_s=0.05)
    with WebServer(build(engine)) as url:
        page.open(url)
        page.until(lambda: page.find("#run").is_enabled())
        page.js("document.querySelector('#max-tokens').value = 300")
        page.click("#run")
        page.until(lambda: any(kind.startswith("accepted") for kind, _ in spans(page)))
        assert page.text("#told") == "Running …"
        page.click("#halt")
        page.until(lambda: page.text("#told").startswith("Stopped after"))
        page.until(lambda: engine.aborted)
        assert not engine.running and page.find("#run").is_displayed()
        # What was seen stays, and is said to be that.
        tiles = page.text("#one dl")
        assert "live, by event" in tiles and re.search(r"Accepted[1-9]\d*tokens, live", tiles)
        assert page.complaints() == []


def test_the_same_without_draft(chromium: Page) -> None:
    page, engine = chromium, drafting()
    with WebServer(build(engine, allow_switch=True)) as url:
        page.open(url)
        page.until(lambda: page.find("#compare").is_displayed())
        page.click("#compare")
        page.until(lambda: page.text("#told").startswith("Equal"))
        assert f"all {len(tokens(ANSWER)) + 1}" in page.text("#told")
        assert {kind.split()[0] for kind, _ in spans(page, "#other")} == {"verifier"}
        assert [text for _, text in spans(page)] == [text for _, text in spans(page, "#other")]
        assert engine.lengths[-2:] == [0, 7] and engine.k == 7
        # Another answer, as sampling may give.
        engine.script = lambda request, sample: [*tokens(ANSWER if engine.k else "Speed was 30."), EOS]
        page.click("#compare")
        page.until(lambda: page.text("#told").startswith("They differ from token 7"))
        assert "tokens/s with the draft (K = 7 in" in page.text("#told-more")
        assert "times" not in page.text("#told-more") and "no measurement" in page.text("#told-more")
        assert [text for kind, text in spans(page) if "differs" in kind] == ["i"]
        page.shoot("compared")
        assert page.complaints() == []


def test_without_leave_to_switch_it_says_why(chromium: Page) -> None:
    page = chromium
    with WebServer(build(drafting())) as url:
        page.open(url)
        page.until(lambda: "T5GEMMA_ALLOW_SWITCH" in page.text("#compare-note"))
        assert not page.find("#compare").is_displayed() and not page.find("#server-k").is_enabled()
        assert "T5GEMMA_ALLOW_SWITCH" in page.text("#k-refusal")


def test_a_refused_request(chromium: Page) -> None:
    page = chromium
    with WebServer(build(drafting())) as url:
        page.open(url)
        page.until(lambda: page.find("#run").is_enabled())
        page.js("document.querySelector('#prompt').value = 'x'.repeat(400)")
        page.click("#run")
        page.until(lambda: page.text("#told").startswith("Failed: "))
        assert "401" in page.text("#told") and "256" in page.text("#told")  # both numbers of the refusal
        assert page.complaints(network=False) == []


def test_what_a_model_writes_is_text(chromium: Page) -> None:
    page, evil = chromium, "<img src=x onerror=alert(1)><script>alert(2)</script>"
    with WebServer(build(drafting(script=lambda request, sample: [*tokens(evil), EOS]))) as url:
        page.open(url)
        page.until(lambda: page.find("#run").is_enabled())
        page.click("#run")
        page.until(lambda: page.text("#told").startswith("Done"))
        assert evil in page.text("#one .answer") and not page.all("#one img, #one script")
        assert page.complaints() == []


def test_a_comparison_says_how_far_it_is(chromium: Page) -> None:
    """And the server would go back by itself, should the page be gone."""
    page, engine = chromium, drafting(delay_s=0.05)
    app = build(engine, allow_switch=True)
    with WebServer(app) as url:
        page.open(url)
        page.until(lambda: page.find("#compare").is_displayed())
        page.click("#compare")
        page.until(lambda: page.text("#told").startswith("Comparing, 1 of 2: with the draft, K = 7"))
        page.until(lambda: page.text("#told").startswith("Comparing, 2 of 2: without"))
        page.until(lambda: spans(page, "#other"))
        assert app.state.gateway.drafting.temporary.then == 7
        assert {kind.split()[0] for kind, _ in spans(page, "#other")} == {"verifier"}
        page.until(lambda: page.text("#told").startswith("Equal"))
        assert app.state.gateway.drafting.temporary is None and engine.k == 7
        page.until(lambda: page.text("#k-told") == "K = 7 for every request of this server.")


@pytest.mark.parametrize("chosen", [None, 3])
def test_a_comparison_is_left_in_the_middle(chromium: Page, chosen: int | None) -> None:
    """K is soon what it was; or what somebody else has chosen meanwhile."""
    page, engine = chromium, drafting(delay_s=0.05)
    app = build(engine, allow_switch=True)
    with WebServer(app) as url:
        page.open(url)
        page.until(lambda: page.find("#compare").is_displayed())
        page.click("#compare")
        page.until(lambda: engine.k == 0)
        if chosen is not None:
            httpx.post(f"{url}/drafts/k", json={"k": chosen}).raise_for_status()
        page.driver.get("about:blank")
        deadline = time.monotonic() + 20
        end = [0, 7] if chosen is None else [0, chosen, 7, chosen]
        while engine.lengths[-len(end) :] != end or app.state.gateway.drafting.temporary is not None:
            assert time.monotonic() < deadline
            time.sleep(0.03)


def test_on_a_phone_the_half_that_runs_is_seen(chromium: Page) -> None:
    page, engine = chromium, drafting(delay_s=0.05)
    half = (
        "const one = document.querySelector('#other').getBoundingClientRect(); return [one.top, one.bottom]"
    )
    with WebServer(build(engine, allow_switch=True)) as url:
        page.open(url, 390)
        page.until(lambda: page.find("#compare").is_displayed())
        page.js("scrollTo(0, 0); document.querySelector('#compare').click()")
        page.until(lambda: spans(page, "#other"))
        top, bottom = page.js(half)
        assert top >= 0 and bottom <= page.js("return innerHeight") + 1
        page.until(lambda: page.text("#told").startswith("Equal"))
    page.view()


def test_the_k_that_were_used(chromium: Page) -> None:
    """The server may measure another K within an answer: its steps are told apart, and so is who changed K."""
    page, engine = chromium, drafting()

    def other(request: object, sample: int) -> list[int]:
        engine.k = 0 if engine.lengths[-1] else 7  # than was asked for
        return [*tokens(ANSWER), EOS]

    with WebServer(build(engine, allow_switch=True)) as url:
        page.open(url)
        page.until(lambda: page.find("#compare").is_displayed())
        engine.script = other
        page.click("#compare")
        page.until(lambda: page.text("#told").startswith("Equal"))
        told = page.text("#told-more")
        assert re.search(r"the draft \(K = 0 in \d+ steps\), .* without \(K = 7 in \d+ steps\)", told)
        assert "Somebody changed K in the second" in told
        turns = iter([7, 7, 7])

        def turning(k: int) -> float:
            engine.k = next(turns, 0)  # of the next step
            return 0.005

        engine.script, engine.seconds = lambda request, sample: [*tokens(ANSWER), EOS], turning
        page.click("#run")
        page.until(lambda: page.text("#told").startswith("Done"))
        assert re.search(r"K = 0 in \d+ steps, K = 7 in \d+: the server measured", page.text("#told"))


def test_more_tokens_than_there_are(chromium: Page) -> None:
    """The field says how many there may be, and nothing is sent beyond."""
    page, engine = chromium, drafting()
    with WebServer(build(engine, allow_switch=True)) as url:
        page.open(url)
        page.until(lambda: page.text("#most-tokens") == "≤ 511")
        page.js("document.querySelector('#max-tokens').value = 512")
        for button in ("#run", "#compare"):
            page.click(button)
        assert page.js("return document.querySelector('#max-tokens').matches(':invalid')")
        page.js("document.querySelector('#max-tokens').value = 511")
        page.click("#run")
        page.until(lambda: page.text("#told").startswith("Done"))
        assert len([one for one in engine.seen if one.sampling.max_tokens > 1]) == 1
