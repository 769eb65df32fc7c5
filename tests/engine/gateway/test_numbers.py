"""The numbers of the draft: one truth in three places."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import PROMPT, K, events

pytestmark = pytest.mark.engine


def test_counters_are_one(server: GatewayProcess) -> None:
    """/drafts/stats, /metrics and the requests' own metrics agree, but for what was accepted behind an end (B21)."""
    names = ("drafts", "draft_tokens", "accepted_tokens")

    def life() -> dict[str, Any]:
        found: dict[str, Any] = server.client.get("/drafts/stats").json()["lifetime"]
        return found

    before = life()
    reply = server.complete([PROMPT, "Tom has 5 apples."], max_tokens=40, ignore_eos=True).json()
    after = life()
    spec = reply["metrics"]["speculative_decoding"]
    assert after["drafts"] - before["drafts"] == spec["num_spec_steps"]
    assert after["draft_tokens"] - before["draft_tokens"] == spec["num_draft_tokens"]
    behind = after["accepted_tokens"] - before["accepted_tokens"] - spec["num_accepted_draft_tokens"]
    assert 0 <= behind <= 2 * K
    # The engine's counters are of every K: near the end of its context a request has fewer draft tokens.
    by_k = server.client.get("/drafts/stats").json()["by_k"]
    for name in names:
        counted = sum(at["lifetime"][name] for at in by_k)
        assert counted == server.metric(f"vllm:spec_decode_num_{name}_total")
    accepted = [position["accepted"] for position in after["per_position"]]
    assert sum(accepted) == after["accepted_tokens"] and accepted == sorted(accepted, reverse=True)
    assert len(accepted) == K and accepted[0] <= after["drafts"]
    assert after["acceptance_rate"] == after["accepted_tokens"] / after["draft_tokens"]
    one = server.complete(PROMPT, max_tokens=40, ignore_eos=True).json()["metrics"]["speculative_decoding"]
    assert sum(one["per_step_accepted"]) == one["num_accepted_draft_tokens"]
    assert len(one["per_step_drafted"]) == one["num_spec_steps"]


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": 2}, {"max_tokens": 2, "n": 3, "temperature": 0.5}, {"max_tokens": 60}, {"stop": [" is"]}],
)
@pytest.mark.parametrize("stream", [False, True])
def test_accepted_is_what_was_received(server: GatewayProcess, fields: dict[str, Any], stream: bool) -> None:
    """Never above completion_tokens, whatever ends the answer: limit, several samples, EOS, a stop string (N16)."""
    if stream:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        usage = events(server.complete(PROMPT, **{"max_tokens": 40, **fields, **options}))[-1]["usage"]
    else:
        usage = server.complete(PROMPT, **{"max_tokens": 40, **fields}).json()["usage"]
    details = usage["completion_tokens_details"]
    # Each sequence's first token comes without a draft.
    assert 0 < details["accepted_prediction_tokens"] <= usage["completion_tokens"] - fields.get("n", 1)


def test_engine_counts_the_start_token(server: GatewayProcess) -> None:
    """vLLM's prompt counter counts the decoder's one start token a request, as the documentation says (C18)."""
    before = server.metric("vllm:prompt_tokens_total")
    usage = server.complete([PROMPT, PROMPT], max_tokens=4).json()["usage"]
    assert usage["prompt_tokens"] > 2 * len(PROMPT.split())
    assert server.metric("vllm:prompt_tokens_total") - before == 2


def test_a_stop_string_hides_no_draft(server: GatewayProcess) -> None:
    """A stop string is found outside the engine's process; what was drafted until then is told all the same (B24)."""
    whole = server.text(PROMPT, max_tokens=40)
    stop = whole[12:20]
    before = server.client.get("/drafts/stats").json()["lifetime"]
    reply = server.complete(PROMPT, max_tokens=40, stop=[stop]).json()
    after = server.client.get("/drafts/stats").json()["lifetime"]
    assert reply["choices"][0]["finish_reason"] == "stop" and stop not in reply["choices"][0]["text"]
    spec = reply["metrics"]["speculative_decoding"]
    assert spec["num_spec_steps"] > 0 and sum(spec["acceptance_histogram"]) == spec["num_spec_steps"]
    # The engine may have begun another step before it heard of the end.
    assert spec["num_spec_steps"] <= after["drafts"] - before["drafts"] <= spec["num_spec_steps"] + 2
    details = reply["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == spec["num_accepted_draft_tokens"]


def test_prompts_are_encoded_once(server: GatewayProcess) -> None:
    """Equal ids: the usage says what was there already, statistics and series count it."""
    prompt = "Lea buys 17 pens and loses 4. How many are left?"

    def stats() -> dict[str, int]:
        found: dict[str, int] = server.client.get("/drafts/stats").json()["encoder"]
        return found

    def usage(asked: Any, **fields: Any) -> tuple[int, int]:
        found = server.complete(asked, max_tokens=4, **fields).json()["usage"]
        return found["prompt_tokens"], found["prompt_tokens_details"]["cached_tokens"]

    before = stats()
    length, cached = usage(prompt, n=6, temperature=1.0)
    assert cached == 0
    assert usage(prompt) == (length, length)
    assert usage(prompt, n=3, temperature=1.0) == (length, length)
    new, other = f"{prompt} ", f"{prompt} Why?"
    tokens = usage([new, other, prompt, new])[0]
    assert usage([new, other, prompt, new]) == (tokens, tokens)
    stream = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for event in events(server.complete(prompt, max_tokens=4, **stream)):
        assert event["usage"]["prompt_tokens_details"] == {"cached_tokens": length}
    after = stats()
    assert after["misses"] - before["misses"] == 3
    assert after["hits"] - before["hits"] == 5 + 1 + 3 + 2 + 4 + 1
    saved = after["tokens_saved"] - before["tokens_saved"]
    assert saved > 10 * length and after["bytes_held"] == server.metric("t5gemma_encoder_cache_bytes") > 0
    assert after["tokens_saved"] == server.metric("t5gemma_encoder_cache_tokens_saved_total")
