"""What the picture says, at the widths and in the states that there are."""

from __future__ import annotations

from typing import Any

import pytest

from app.drafts.report import Stats
from app.top.history import History
from app.top.picture import Picture, age
from app.top.server import Look
from tests.app.top.stub import DRAFTS, acceptance, console, printed, stats

SPEEDUP = {"value": 2.41, "low": 2.3, "high": 2.52, "overall": 2.2, "origin": "stored", "age_s": 7200.0}


def step(k: int, seconds: float, length: float, speedup: float | None) -> dict[str, Any]:
    timed = {"step_seconds": seconds, "error_seconds": 0.0, "timed_steps": 40, "age_s": 1.0}
    return {"k": k, **timed, "mean_acceptance_length": length, "speedup": speedup}


ESTIMATE = {
    "batch": 4,
    "speedup": SPEEDUP,
    "recommended_k": 5,
    "recommended_reason": "of K = 0, 3, 5 it is the fastest",
    "by_k": [step(0, 0.010, 1.0, None), step(3, 0.0125, 2.5, 2.41), step(5, 0.013, 2.7, 2.6)],
}
FULL = stats(acceptance(1000, 0.8, 0.5, 0.25), acceptance(100, 0.9, 0.6, 0.3), estimate=ESTIMATE)


def shown(
    told: dict[str, Any] | None = FULL,
    width: int = 80,
    drafts: Any = DRAFTS,
    state: Any = "ready",
    **more: Any,
) -> str:
    found = None if told is None else Stats.model_validate(told)
    engine = {"running": 4, "waiting": 2, "in_flight": 6}
    look = Look(state, stats=found, drafts=drafts if found else None, engine=engine, **more)
    history = History()
    history.tokens.extend([100.0, 200.0])
    history.acceptance.extend([0.5, 1.0])
    on = console(width)
    on.print(Picture("http://server", look, history))
    return printed(on)


def words_of(picture: str) -> str:
    """The picture as one line, so that words are found wherever the line was broken."""
    return " ".join(picture.split())


@pytest.mark.parametrize("width", [120, 80, 50, 30])
def test_all_facts_at_every_width(width: int) -> None:
    picture = shown(width=width)
    assert all(len(line.rstrip()) <= width for line in picture.splitlines())
    words = words_of(picture)
    for part in (
        "dflash, K = 3 of block 8, my-draft",
        "/drafts/my-draft",
        "my-verifier, bfloat16",
        "2.41× tokens/s over no draft (2.30 … 2.52); 2.20× with",
        "a stored benchmark, 2 h old",
        "K = 5: of K = 0, 3, 5 it is the fastest",
        "60.0 %, 2.80 tokens a step in 60 s; 51.7 %, 2.55 tokens a step since start",
        "200.0 ▄█",
        "100.0 % ▄█",
        "4 running, 2 queued, 6 in the gateway",
        "3 of 12 prompts cached, 25.0 %; 120 tokens saved; 3.0 MiB held",
    ):
        assert part in words, part


def test_positions_and_ks_side_by_side() -> None:
    lines = [line.split() for line in shown().splitlines()]
    full = "█" * 12
    assert [
        "0",
        "██████████▊",
        "90.0",
        "%",
        "██████████▊",
        "90.0",
        "%",
        "0",
        "1.00×",
        "1.00",
        "10.00",
    ] in lines
    assert ["1", "███████▏", "60.0", "%", "████████", "66.7", "%", "3", "2.41×", "2.50", "12.50"] in lines
    assert any(line[-4:] == ["*5", "2.60×", "2.70", "13.00"] for line in lines)
    assert full not in shown()


def test_narrow() -> None:
    """One bar a position, and the tables one above the other."""
    lines = [line.split() for line in shown(width=50).splitlines()]
    assert ["1", "███████▏", "60.0", "%", "66.7", "%"] in lines
    assert ["*5", "2.60×", "2.70", "13.00"] in lines


def test_without_traffic() -> None:
    words = words_of(shown(stats()))
    assert words.count("not known: no request has run yet") == 2 and "baseline" not in words
    assert "accepted –, – tokens a step in 60 s" in words


def test_an_idle_window_shows_what_was_before() -> None:
    words = words_of(shown(stats(acceptance(1000, 0.8, 0.5, 0.25), estimate=ESTIMATE)))
    assert "since start" in words and "80.0 %" in words


def test_without_a_draft() -> None:
    nothing: dict[str, Any] = {"family": None, "k": None, "asked": None}
    words = words_of(shown(stats(**nothing), drafts={**DRAFTS, "family": None}))
    assert "none: the verifier alone is served" in words and "speed-up" not in words and "pos" not in words
    assert "4 running" in words and "200.0 ▄█" in words


def test_auto_and_a_useless_draft() -> None:
    told = {**FULL, "asked": "auto"}
    words = words_of(shown(told, drafts={**DRAFTS, "probe": {"warning": "it gives less than 1.1 tokens"}}))
    held = words_of(shown({**FULL, "temporary": {"seconds_left": 40.2, "then": 7}}))
    assert "K = 3 (for 40 s more, then 7) of block 8" in held
    assert "K = 3 (auto) of block 8" in words and "probe it gives less than 1.1 tokens" in words


def test_available_drafts() -> None:
    found = [
        {"name": "a", "family": "dspark", "default_k": 7, "fits": True, "active": True, "misfit": None},
        {"name": "b", "family": "dflare", "default_k": 3, "fits": True, "active": False, "misfit": None},
        {
            "name": "c",
            "family": None,
            "default_k": None,
            "fits": False,
            "misfit": "config.json: no block_size",
        },
    ]
    lines = [line.split() for line in shown(drafts={**DRAFTS, "available": found}).splitlines()]
    assert ["a", "dspark", "7", "active"] in lines and ["b", "dflare", "3", "fits"] in lines
    assert ["c", "–", "–", "config.json:", "no", "block_size"] in lines


@pytest.mark.parametrize(
    ("state", "more", "words"),
    [
        ("loading", {"stage": "weights", "seconds": 12.4}, "loading: weights, 12 s so far"),
        ("draining", {}, "draining: running requests end"),
        ("failed", {}, "failed: the engine did not start"),
        ("dead", {}, "dead: the engine is lost"),
        ("stopped", {}, "stopped"),
        ("key_required", {"reason": "put it there"}, "key required: put it there"),
        ("unreachable", {"reason": "refused"}, "unreachable: refused"),
    ],
)
def test_states(state: str, more: dict[str, Any], words: str) -> None:
    """With what else is known, or without."""
    assert words in words_of(shown(None, state=state, **more))
    assert words in (seen := words_of(shown(state=state, **more))) and "my-draft" in seen


@pytest.mark.parametrize(("low", "high", "colour"), [(2.0, 3.0, 32), (0.5, 0.9, 31), (0.9, 1.1, 33)])
def test_whether_the_draft_pays_by_colour(low: float, high: float, colour: int) -> None:
    """Green, red and, where it cannot be told, yellow."""
    estimate = {**ESTIMATE, "speedup": {**SPEEDUP, "value": (low + high) / 2, "low": low, "high": high}}
    look = Look("ready", stats=Stats.model_validate({**FULL, "estimate": estimate}), drafts=DRAFTS)
    on = console(force_terminal=True, color_system="standard")
    on.print(Picture("u", look, History()))
    assert f"\x1b[1;{colour}m{(low + high) / 2:.2f}×" in printed(on)


def test_no_colour() -> None:
    look = Look("ready", stats=Stats.model_validate(FULL), drafts=DRAFTS)
    on = console(force_terminal=True, color_system="standard", no_color=True)
    on.print(Picture("u", look, History()))
    assert not any(f"\x1b[{colour}m" in printed(on) for colour in (31, 32, 33)) and "2.41×" in printed(on)


def test_names_obey_nobody() -> None:
    """Neither a terminal's control characters nor rich's markup come through from a server."""
    bad = "x\x1b]0;evil\x07\n[bold]y[/nothing]"
    drafts = {**DRAFTS, "draft": bad, "verifier": {"name": bad}, "available": [{"name": bad, "misfit": bad}]}
    for picture in (shown(drafts=drafts), shown(None, state="unreachable", reason=bad)):
        assert "\x1b" not in picture and "\x07" not in picture
        assert "[bold]y[/nothing]" in words_of(picture)


def test_ages() -> None:
    assert [age(s) for s in (0.4, 119, 120, 7199, 7200, 86_400 * 3)] == [
        "0 s",
        "119 s",
        "2 min",
        "120 min",
        "2 h",
        "3 d",
    ]
