"""What is no output has no time, and what fails is counted by its cause and slows nothing down."""

from __future__ import annotations

import pytest

from app.bench.errors import BenchError
from tests.app.bench.scripted import Script, event
from tests.app.bench.test_load import measured

DONE = "data: [DONE]\n\n"
FOREVER = 1e6


def token(text: str, **fields: object) -> str:
    return event({"choices": [{"index": 0, "text": text, **fields}]})


def usage(tokens: int) -> str:
    return event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})


def test_comments_and_empty_chunks_are_no_output() -> None:
    """A comment at 10 ms, an empty chunk at 20 ms, text at 200, 300 and 400 ms, then a chunk with the reason alone:
    TTFT 200 ms, TPOT 100 ms (N31).
    """
    stream = [
        (0.01, ": ping\n\n"),
        (0.02, token("")),
        (0.2, token("a")),
        (0.3, token("b")),
        (0.4, token("c")),
        (0.4, token("", finish_reason="length")),
        (0.4, usage(3)),
        (0.45, DONE),
    ]
    record = measured(Script(raw=lambda number: stream, ids=False), prompts=2)
    assert (record["completed"], record["chunks"], record["output_tokens"]) == (2, 6, 6)
    wanted = {"ttft_ms": 200.0, "itl_ms": 100.0, "tpot_ms": 100.0, "latency_ms": 400.0}
    for name, value in wanted.items():
        assert record[name] == pytest.approx(dict.fromkeys(("mean", "p50", "p95", "p99"), value)), name


def test_a_one_token_answer_has_no_time_between_tokens() -> None:
    """Its last chunk, which only says why it ended, makes no ITL, nor a TPOT (N31)."""
    stream = [(0.2, token("a")), (0.21, token("", finish_reason="length")), (0.21, usage(1)), (0.21, DONE)]
    record = measured(Script(raw=lambda number: stream, ids=False), prompts=2)
    assert record["itl_ms"] is None and record["tpot_ms"] is None
    assert record["ttft_ms"]["mean"] == pytest.approx(200.0)


def test_failures_by_cause_with_a_row_for_each_request() -> None:
    """Of 18 requests three get 500, one ends without [DONE], one is empty and two hang: each is counted, has a row, and
    rates are those of the others (N32).
    """
    first = 8  # warm-up requests
    whole = [(0.5, token("a", token_ids=[7])), (1.0, token("b", token_ids=[8])), (1.0, usage(2)), (1.0, DONE)]
    odd = {3: whole[:3], 5: [(1.0, DONE)], 7: [(FOREVER, "")], 9: [(FOREVER, "")]}
    script = Script(
        raw=lambda number: odd.get(number - first, whole),
        refuse=lambda prompt: "boom" if prompt.count("x") in (11, 12, 13) else None,
        status=500,
    )
    record = measured(script, prompts=18, timeout_s=20.0)
    assert (record["completed"], record["failed"], record["partial"]) == (11, 7, False)
    assert record["failures"] == {"timed out": 2, "HTTP 500": 3, "no [DONE]": 1, "no output": 1}
    rows = record["requests"]
    assert [row["prompt"] for row in rows] == list(range(18))
    assert rows[0] == {
        "prompt": 0, "failure": None, "finish_reason": None, "error": None, "sent_s": 0.0, "over_s": 1.0,
        "ttft_ms": 500.0, "latency_ms": 1000.0, "prompt_tokens": 3, "output_tokens": 2, "chunks": 2,
    }  # fmt: skip
    assert (rows[7]["failure"], rows[7]["error"]) == ("timed out", "no end after 20 s (--timeout)")
    assert (rows[11]["failure"], rows[11]["error"], rows[11]["output_tokens"]) == (
        "HTTP 500",
        "500: boom",
        None,
    )
    # One at a time: 11 seconds of completed requests, whatever time the others took.
    assert record["seconds"] == pytest.approx(11.0)
    assert record["output_tokens_per_s"] == pytest.approx(2.0)


def test_what_hangs_beside_others_costs_them_nothing() -> None:
    """Two of four at once hang; the rate is that of those that ran meanwhile, not that of a wait of 20 s (N32)."""
    whole = [(1.0, token("a", token_ids=[7])), (1.0, usage(1)), (1.0, DONE)]
    script = Script(raw=lambda number: [(FOREVER, "")] if number - 8 in (0, 1) else whole)
    record = measured(script, prompts=10, concurrency=4, timeout_s=20.0)
    assert record["failures"] == {"timed out": 2}
    assert record["seconds"] == pytest.approx(4.0) and record["output_tokens_per_s"] == pytest.approx(2.0)


def test_a_server_that_is_gone_ends_the_load() -> None:
    """It is asked a few times whether it is still there; the requests that are left are not failed one by one (N33)."""
    script = Script(
        delays_s=lambda number: [0.1],
        refuse=lambda prompt: "boom" if "xx" in prompt else None,
        status=503,
        sick=True,
    )
    with pytest.raises(BenchError, match="the server was lost: /health answers 503"):
        measured(script, prompts=200, warmup=1)
    assert len(script.bodies) < 10
