"""The cost script measures right answers only, and nothing of the shell reaches its servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.bench.client import Target
from app.bench.errors import BenchError
from app.bench.servers import started
from benchmarks import gateway_cost
from benchmarks.gateway_cost import MODEL, TOKENS, Server, Turn, report, servers, stream, tail, whole
from benchmarks.results import read
from plugin.drafts.checkpoint import DEMO, resolve

TEXT: dict[str, Any] = {"choices": [{"index": 0, "text": "a"}]}
EMPTY: dict[str, Any] = {"choices": [{"index": 0, "text": ""}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": tokens}}


def target(text: str) -> Target:
    """A server that says this text, whatever it is asked."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))
    return Target(httpx.AsyncClient(transport=transport, base_url="http://server"), MODEL, gives_ids=False)


def streaming(*events: Any) -> Target:
    """A server that streams these events."""
    return target("".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events))


@pytest.mark.anyio
async def test_a_right_stream_is_timed() -> None:
    assert await stream(streaming(TEXT, usage(TOKENS), "[DONE]"), [2]) > 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((), "DONE"),
        ((TEXT, usage(TOKENS)), "DONE"),
        ((TEXT, {"error": {"message": "lost"}}, "[DONE]"), "lost"),
        ((usage(TOKENS), "[DONE]"), "no output"),
        ((EMPTY, usage(TOKENS), "[DONE]"), "no output"),
        ((TEXT, "[DONE]"), "None"),
        ((TEXT, usage(TOKENS - 1), "[DONE]"), str(TOKENS - 1)),
    ],
)
async def test_a_wrong_stream_is_refused(events: tuple[Any, ...], why: str) -> None:
    with pytest.raises(BenchError, match=why):
        await stream(streaming(*events), [2])


@pytest.mark.anyio
async def test_a_short_reply_is_refused() -> None:
    await whole(target(json.dumps(usage(TOKENS))), [2])
    with pytest.raises(BenchError, match="3"):
        await whole(target(json.dumps(usage(3))), [2])


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """The two servers of the demo, made in a shell that sets a variable of the gateway."""
    monkeypatch.setenv("T5GEMMA_K", "1")
    return servers(resolve(str(DEMO / "dflash"), None, None, None), 4, gpu=False)


def test_both_serve_the_same(both: list[Server]) -> None:
    ours, stock = both
    flags = dict(zip(stock.command, stock.command[1:], strict=False))
    for name in (
        "model",
        "dtype",
        "max_model_len",
        "max_num_seqs",
        "kv_cache_memory_bytes",
        "served_model_name",
    ):
        assert ours.variables[f"T5GEMMA_{name.upper()}"] == flags[f"--{name.replace('_', '-')}"]
    assert (ours.variables["T5GEMMA_MAX_NUM_SEQS"], ours.variables["T5GEMMA_DTYPE"]) == ("4", "float32")
    assert "--enforce-eager" in stock.command and ours.variables["T5GEMMA_ENFORCE_EAGER"] == "True"
    speculative = json.loads(flags["--speculative-config"])
    assert (speculative["model"], speculative["num_speculative_tokens"]) == (str(DEMO / "dflash"), 7)
    assert ours.variables["T5GEMMA_DRAFT"] == str(DEMO / "dflash")


def test_a_gpu_has_graphs_and_bfloat16() -> None:
    ours, stock = servers(resolve(str(DEMO / "dflash"), None, None, None), 4, gpu=True)
    assert "--enforce-eager" not in stock.command and ours.variables["T5GEMMA_ENFORCE_EAGER"] == "False"
    assert "bfloat16" in stock.command and ours.variables["T5GEMMA_DTYPE"] == "bfloat16"


def test_the_shell_sets_nothing(tmp_path: Path, both: list[Server]) -> None:
    """Neither variables nor a `.env` beside the caller reach a server; what it writes is kept."""
    ours, stock = both
    assert "T5GEMMA_K" not in ours.variables
    assert not [name for name in stock.variables if name.startswith("T5GEMMA_")]
    code = "import os; print(sorted(n for n in os.environ if n.startswith('T5GEMMA_')), os.listdir())"
    variables = {**stock.variables, "T5GEMMA_DTYPE": "float32"}
    log = Server("a server", (), "", {}).log(tmp_path)

    async def start() -> None:
        async with started("a server", ("-c", code), variables, "/ready", log, 30):
            pass

    with pytest.raises(BenchError, match="a server: its server ended with 0"):
        asyncio.run(start())
    assert tail(log) == "['T5GEMMA_DTYPE'] ['a-server.log']"


def add_runs(ours: Server, stock: Server) -> None:
    ours.runs.extend([Turn(8.0, 2.0, 0.1), Turn(12.0, 4.0, 0.3), Turn(10.0, 3.0, 0.2)])
    stock.runs.extend([Turn(5.0, 1.5, 0.1)] * 3)


def test_report(both: list[Server]) -> None:
    add_runs(*both)
    head, *rows = report(*both).splitlines()
    assert head.split() == ["gateway", "vllm", "serve", "ratio"]
    assert [row.split()[-5:] for row in rows] == [
        ["10.00", "(8.00-12.00)", "5.00", "(5.00-5.00)", "2.000"],
        ["200.00", "(100.00-300.00)", "100.00", "(100.00-100.00)", "2.000"],
        ["3.00", "(2.00-4.00)", "1.50", "(1.50-1.50)", "2.000"],
    ]


def test_busy_cores_are_told(both: list[Server]) -> None:
    """The ratio of two servers on loaded cores is one of chance."""
    add_runs(*both)
    both[1].busy.extend([0.1, 1.26])
    assert report(*both).splitlines()[-1] == "NOT to be believed: before a run others used 1.3 cores"
    both[1].busy[1] = 0.2
    assert len(report(*both).splitlines()) == 4


@pytest.mark.anyio
async def test_busy_cores_are_seen() -> None:
    def work() -> None:
        deadline = time.monotonic() + 0.4
        while time.monotonic() < deadline:
            pass

    found, _ = await asyncio.gather(gateway_cost.busy_cores(0.3), asyncio.to_thread(work))
    assert 0.3 < found <= len(os.sched_getaffinity(0)) + 0.01


def test_the_figures_are_recorded(
    tmp_path: Path, both: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measured(both: list[Server], *rest: Any) -> None:
        add_runs(*both)

    monkeypatch.setattr(gateway_cost, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path / "gpu.json")])
    gateway_cost.main()
    results = read(tmp_path / "gpu.json")
    assert results["figures"] == {"gateway_over_vllm_serve_rps": 2.0, "gateway_over_vllm_serve_ttft": 2.0}
    (run,) = results["runs"].values()
    assert run["details"]["gateway"][1] == {"stream_rate": 12.0, "whole_rate": 4.0, "first": 0.3}
