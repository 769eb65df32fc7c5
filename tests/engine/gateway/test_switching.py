"""K and the draft changed under load: every request ends as it would have without, and the numbers stay true."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Any

import httpx
import pytest

from plugin.drafts.checkpoint import DEMO
from plugin.training.data.problems.generate import generate
from tests.engine.gateway.process import GatewayProcess, gateway

pytestmark = pytest.mark.engine

PROMPTS = [problem.question for problem in islice(generate(41_000, "fresh"), 24)]
AT_ONCE = 6


@pytest.fixture(scope="module")
def switchable() -> Iterator[GatewayProcess]:
    """The demo with all its drafts at hand; five steps in a hundred measure."""
    with gateway(
        checkpoints_dir=DEMO,
        allow_switch="true",
        baseline_share=0.05,
        request_metrics="detailed",
        warm_up="false",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def expected(switchable: GatewayProcess) -> list[str]:
    """One at a time, at K = 7 but for the windows."""
    return [answer(switchable, prompt)["choices"][0]["text"] for prompt in PROMPTS]


def answer(server: GatewayProcess, prompt: str) -> dict[str, Any]:
    """The reply, asked for again while the server says that it is to come back."""
    with httpx.Client(base_url=server.url, timeout=120) as client:
        while True:
            body = {"prompt": prompt, "temperature": 0, "max_tokens": 96}
            reply = client.post("/v1/completions", json=body)
            if reply.status_code != 503:
                assert reply.status_code == 200, reply.text
                found: dict[str, Any] = reply.json()
                return found
            assert "Retry-After" in reply.headers
            time.sleep(0.2)


def choose(server: GatewayProcess, k: int | str) -> dict[str, Any]:
    reply = server.client.post("/drafts/k", json={"k": k})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_k_is_changed_under_load(switchable: GatewayProcess, expected: list[str]) -> None:
    """Every few steps, 0 included: each reply is what it was, and its own numbers add up to its tokens."""
    ended = threading.Event()

    def change() -> None:
        for k in cycle((0, 7, 3, "auto", 1, 5)):
            if ended.is_set():
                break
            choose(switchable, k)
            time.sleep(0.015)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            replies = list(pool.map(lambda prompt: answer(switchable, prompt), PROMPTS))
    finally:
        ended.set()
        changing.join()
    assert [reply["choices"][0]["text"] for reply in replies] == expected
    seen: set[str] = set()
    for reply in replies:
        spec, tokens = reply["metrics"]["speculative_decoding"], reply["usage"]["completion_tokens"]
        steps = sum(spec["steps_by_k"].values())
        # The first token, and one of the verifier's own a step, of which the last may lie behind the end.
        assert tokens - 1 <= steps + spec["num_accepted_draft_tokens"] <= tokens
        assert spec["num_draft_tokens"] == sum(int(k) * n for k, n in spec["steps_by_k"].items())
        assert spec["num_spec_steps"] == steps - spec["steps_by_k"].get("0", 0)
        seen |= spec["steps_by_k"].keys()
    assert seen >= {"0", "1", "3", "7"}
    stats = switchable.client.get("/drafts/stats").json()
    by_k = {entry["k"]: entry["lifetime"] for entry in stats["by_k"]}
    assert sum(entry["drafts"] for entry in by_k.values()) == switchable.metric(
        "vllm:spec_decode_num_drafts_total"
    )
    assert sum(entry["accepted_tokens"] for entry in by_k.values()) == switchable.metric(
        "vllm:spec_decode_num_accepted_tokens_total"
    )
    for k, entry in by_k.items():
        assert entry["draft_tokens"] == k * entry["drafts"] and len(entry["per_position"]) == k


def test_acceptance_returns_after_no_draft(switchable: GatewayProcess, expected: list[str]) -> None:
    """At K = 0 nothing is drafted, and whole blocks make K = 3 accept a prefix of what K = 7 does."""
    lengths = {}
    for k in (0, 7, 3):
        choose(switchable, k)
        before = lifetime(switchable, k)
        assert [answer(switchable, prompt)["choices"][0]["text"] for prompt in PROMPTS] == expected
        after = lifetime(switchable, k)
        drafts = after["drafts"] - before["drafts"]
        lengths[k] = 1 + (after["accepted_tokens"] - before["accepted_tokens"]) / drafts if drafts else 1.0
    assert lengths[0] == 1 and lengths[7] > 4.5 and 3 < lengths[3] < 4
    estimate = switchable.client.get("/drafts/stats").json()["estimate"]
    assert estimate["batch"] == 1 and {0, 3} <= {entry["k"] for entry in estimate["by_k"]}
    assert 1 < estimate["speedup"]["overall"] < estimate["speedup"]["value"] < 8


def lifetime(server: GatewayProcess, k: int) -> dict[str, Any]:
    by_k = {entry["k"]: entry["lifetime"] for entry in server.client.get("/drafts/stats").json()["by_k"]}
    found: dict[str, Any] = by_k.get(k, {"drafts": 0, "accepted_tokens": 0})
    return found


def test_the_draft_is_changed_under_load(switchable: GatewayProcess, expected: list[str]) -> None:
    """No accepted request is lost, and all have their text, whichever draft was at work."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(answer, switchable, prompt) for prompt in PROMPTS]
        time.sleep(0.1)
        reply = switchable.client.post("/drafts/active", json={"draft": "dspark"}, timeout=240)
        assert (reply.status_code, reply.json().get("family")) == (200, "dspark"), reply.text
        assert [one.result()["choices"][0]["text"] for one in running] == expected
    loaded = switchable.client.get("/drafts").json()
    assert (loaded["family"], loaded["k"]) == ("dspark", 7)
    stats = switchable.client.get("/drafts/stats").json()
    assert stats["history"][0]["draft"].endswith("dflash") and stats["lifetime"]["drafts"] > 0
    assert answer(switchable, PROMPTS[0])["choices"][0]["text"] == expected[0]
