"""Counters: parsed from vLLM's series or our statistics, and meaningful only as a difference."""

from __future__ import annotations

import httpx
import pytest

from app.bench.counters import Reading, acceptance_between, parse, read, settled
from app.drafts.ledger import Counts
from tests.app.bench.scripted import Script, client_of
from tests.app.bench.virtual_time import run

TEXT = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a \\"b\\""} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a \\"b\\""} 5.0
vllm:spec_decode_num_drafts_created{engine="0"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 3.0
vllm:e2e_request_latency_seconds_bucket{le="0.3"} 3.0
t5gemma_drafts_total 99.0
"""


def test_parse_adds_up_engines() -> None:
    assert parse(TEXT) == Counts(3, 15, 30, 12, accepted=[9, 0, 3])


@pytest.mark.parametrize("text", ["", "# nothing\n", "vllm:num_requests_running 3.0\n"])
def test_parse_without_a_draft(text: str) -> None:
    assert parse(text) is None


def reading(drafts: int, accepted: list[int], source: str = "/metrics") -> Reading:
    k = len(accepted)
    return Reading(source, Counts(k, drafts, drafts * k, sum(accepted), accepted=accepted))


def test_acceptance_is_the_difference() -> None:
    """What was drafted before the first reading, as in warm-ups, is in no rate (F03)."""
    found = acceptance_between(reading(100, [100, 100]), reading(110, [108, 104]))
    assert found == {
        "source": "/metrics",
        "drafts": 10,
        "draft_tokens": 20,
        "accepted_tokens": 12,
        "acceptance_rate": 0.6,
        "mean_acceptance_length": 2.2,
        "per_position": [
            {"position": 0, "accepted": 8, "rate": 0.8, "conditional_rate": 0.8},
            {"position": 1, "accepted": 4, "rate": 0.4, "conditional_rate": 0.5},
        ],
    }


def test_acceptance_without_traffic_is_null() -> None:
    found = acceptance_between(reading(5, [2]), reading(5, [2]))
    assert found is not None
    assert (found["drafts"], found["acceptance_rate"], found["mean_acceptance_length"]) == (0, None, None)


def test_acceptance_across_a_restart_is_unknown() -> None:
    assert acceptance_between(reading(50, [5]), reading(3, [1])) is None
    assert acceptance_between(reading(5, [5]), reading(9, [5], "/drafts/stats")) is None
    assert acceptance_between(None, reading(3, [1])) is None


def test_statistics_stand_in_for_missing_series() -> None:
    positions = [{"accepted": 4}, {"accepted": 1}]
    life = {"drafts": 6, "draft_tokens": 12, "accepted_tokens": 5, "per_position": positions}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text="python_info 1\n")
        return httpx.Response(200, json={"family": "dflash", "k": 2, "lifetime": life})

    async def main() -> Reading | None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://s") as client:
            return await read(client)

    assert run(main()) == Reading("/drafts/stats", Counts(2, 6, 12, 5, accepted=[4, 1]))


def test_settled_waits_for_the_last_step() -> None:
    """A step that is counted 120 ms after its tokens were sent is in the reading."""
    import asyncio

    script = Script(k=2, accepted=1, drafts=3)

    async def main() -> Reading | None:
        async with client_of(script) as client:
            loop = asyncio.get_running_loop()
            loop.call_later(0.02, lambda: setattr(script, "drafts", 4))
            loop.call_later(0.07, lambda: setattr(script, "drafts", 5))
            return await settled(client)

    found = run(main())
    assert found is not None and found.counts.drafts == 5
