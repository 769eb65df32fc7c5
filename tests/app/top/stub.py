"""Servers that answer from a table, and what a console of a given width prints."""

from __future__ import annotations

import io
from typing import Any

import httpx
from rich.console import Console

from app.drafts.report import Stats

COUNTS: dict[str, Any] = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0, "acceptance_rate": None}
EMPTY: dict[str, Any] = {**COUNTS, "mean_acceptance_length": None, "per_position": []}
READY = {"status": "ok", "phase": "ready", "stage": "ready", "seconds": 9.5}
DRAFTS = {
    "family": "dflash",
    "draft": "my-draft",
    "draft_path": "/drafts/my-draft",
    "block_size": 8,
    "dtype": "bfloat16",
    "verifier": {"name": "my-verifier"},
    "probe": None,
    "available": [],
}
SERIES = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 1.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
t5gemma_sequences_in_flight 6.0
vllm:generation_tokens_total{engine="0"} %d
vllm:generation_tokens_created{engine="0"} 1.7e+09
"""


def acceptance(drafts: int, *rates: float) -> dict[str, Any]:
    """Counts of drafts of as many tokens as there are unconditional rates."""
    accepted = [round(drafts * rate) for rate in rates]
    reached = [drafts, *accepted]
    return {
        "drafts": drafts,
        "draft_tokens": drafts * len(rates),
        "accepted_tokens": sum(accepted),
        "acceptance_rate": sum(accepted) / (drafts * len(rates)),
        "mean_acceptance_length": 1 + sum(accepted) / drafts,
        "per_position": [
            {
                "position": i,
                "proposed": drafts,
                "accepted": accepted[i],
                "rate": accepted[i] / drafts,
                "conditional_rate": accepted[i] / reached[i] if reached[i] else None,
            }
            for i in range(len(rates))
        ],
    }


def stats(lifetime: dict[str, Any] = EMPTY, window: dict[str, Any] = EMPTY, **fields: Any) -> dict[str, Any]:
    """What GET /drafts/stats answers."""
    told = {
        "family": "dflash",
        "k": 3,
        "asked": 3,
        "lifetime": lifetime,
        "window": {**window, "seconds": 60.0},
        "by_k": [],
        "estimate": {
            "speedup_reason": "no request has run yet",
            "recommended_reason": "no request has run yet",
        },
        "encoder": {
            "hits": 3,
            "misses": 9,
            "tokens_saved": 120,
            "tokens_encoded": 400,
            "bytes_held": 3 << 20,
        },
        **fields,
    }
    return Stats.model_validate(told).model_dump(mode="json")


def table(**changed: Any) -> dict[str, Any]:
    """Path without its slash -> the reply, a JSON value or a whole response; `drafts_stats` is /drafts/stats."""
    metrics = httpx.Response(200, text=SERIES % 1000)
    return {"ready": READY, "drafts": DRAFTS, "drafts_stats": stats(), "metrics": metrics, **changed}


def client_of(replies: dict[str, Any], seen: list[str] | None = None, **options: Any) -> httpx.AsyncClient:
    """A client of a server that answers so; what is not in the table is 404. An exception is raised."""

    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request.url.path)
        reply = replies.get(request.url.path.strip("/").replace("/", "_"))
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, httpx.Response):
            return httpx.Response(reply.status_code, content=reply.content)
        return httpx.Response(404) if reply is None else httpx.Response(200, json=reply)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://server", **options)


def console(width: int = 80, **options: Any) -> Console:
    """One that writes into memory; `printed` reads it."""
    chosen = {"markup": False, "emoji": False, "highlight": False, **options}
    return Console(file=io.StringIO(), width=width, _environ={}, **chosen)


def printed(on: Console) -> str:
    """What was written so far."""
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()
