"""Served against teacher-forced acceptance: what is asked of a server, what is shown, and the exit code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.bench import counters
from app.bench.arms import Arm
from app.bench.errors import BenchError
from benchmarks import served_accuracy
from benchmarks.comparison import Request, Walk
from benchmarks.served_accuracy import main, served, walked
from plugin.drafts.checkpoint import DEMO
from tests.plugin.drafts.folders import write_pair

K = 3
WALK = Walk(anchors=20, counted=[20, 18, 16], correct=[15, 9, 12], matched=[15, 8, 2], tokens=60, greedy=59)


class FakeGateway:
    """Answers with ten steps a prompt, and counts them only when its statistics are asked for the `lag`-th time."""

    def __init__(self, accepted: Sequence[int] = (3, 1, 0, 1, 0, 1, 2, 0, 1, 1), lag: int = 0) -> None:
        self.accepted, self.lag, self.k = list(accepted), lag, K
        self.tokens = list(range(1 + sum(1 + run for run in accepted)))
        self.bodies: list[dict[str, Any]] = []

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer), base_url="http://gateway")

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/drafts/stats":
            self.lag -= bool(self.bodies)
            runs = self.accepted * len(self.bodies) if self.lag < 0 else []
            life = {
                "drafts": 2 + len(runs),
                "draft_tokens": K * (2 + len(runs)),
                "accepted_tokens": K + sum(runs),
                "per_position": [{"accepted": 1 + sum(run > at for run in runs)} for at in range(K)],
            }
            return httpx.Response(200, json={"k": self.k, "lifetime": life})
        if request.url.path == "/metrics":
            return httpx.Response(404)
        assert request.url.path == "/v1/completions"
        self.bodies.append(json.loads(request.content))
        choice = {"text": "x", "prompt_token_ids": [2, 7], "token_ids": self.tokens}
        metrics = {"speculative_decoding": {"per_step_accepted": self.accepted}}
        return httpx.Response(200, json={"choices": [choice], "metrics": metrics})


@pytest.mark.anyio
@pytest.mark.parametrize("lag", [0, 3])
async def test_what_the_prompts_added_is_counted(monkeypatch: pytest.MonkeyPatch, lag: int) -> None:
    """Not what the server served before, and also when it counts late."""
    monkeypatch.setattr(counters, "_SETTLE_S", 0.0)
    gateway = FakeGateway(lag=lag)
    async with gateway.client() as client:
        requests, drafts, accepted = await served(client, ["one", "two"], 40)
    assert requests == [Request([2, 7], gateway.tokens, gateway.accepted)] * 2
    assert (drafts, accepted) == (20, [14, 4, 2])
    assert [body["prompt"] for body in gateway.bodies] == ["one", "two"]
    wanted = {"temperature": 0, "max_tokens": 40, "return_token_ids": True, "request_metrics": "detailed"}
    assert all(body == body | wanted for body in gateway.bodies)


@pytest.mark.anyio
async def test_a_failed_request_is_one_line() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(503, text="down"))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        with pytest.raises(BenchError, match=r"http://gateway.*503"):
            await served(client, ["one"], 40)


@pytest.mark.anyio
async def test_a_server_that_counts_no_drafts_is_refused() -> None:
    gateway = FakeGateway()
    gateway.k = 0
    async with gateway.client() as client:
        with pytest.raises(BenchError, match="http://gateway: no counters of a draft"):
            await served(client, ["one"], 40)


def test_a_walk_that_fails_is_one_line() -> None:
    with pytest.raises(BenchError, match=r"^the walk: 0 steps lead to token 1 of an answer of 2$"):
        walked([Request([2], [20, 1], [])], str(DEMO / "dflash"), str(DEMO / "verifier"), 3)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> FakeGateway:
    """A gateway and a walk without a process; 7 of 10 anchors are accepted at position 0."""
    gateway = FakeGateway()

    @asynccontextmanager
    async def serving(arm: Arm, concurrency: int, log: Path, start_timeout_s: float) -> AsyncIterator[str]:
        assert dict(arm.settings)["REQUEST_METRICS"] == "detailed" and dict(arm.settings)["K"] == "3"
        yield "http://gateway"

    monkeypatch.setattr(served_accuracy, "serving", serving)
    monkeypatch.setattr(served_accuracy, "http_client", lambda url, own: gateway.client())
    return gateway


@pytest.mark.parametrize(("correct", "code", "relation"), [(7, 0, "within"), (6, 1, "NOT within")])
def test_the_command_shows_both_columns(
    faked: FakeGateway,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    correct: int,
    code: int,
    relation: str,
) -> None:
    sums = Walk(10, counted=[10, 9, 8], correct=[correct, 3, 2], matched=[correct, 2, 1], tokens=3, greedy=3)
    asked: list[tuple[str, int]] = []

    def walk(requests: Sequence[Request], draft: str, verifier: str, k: int) -> Walk:
        asked.append((Path(draft).name, k))
        return sums

    monkeypatch.setattr(served_accuracy, "walked", walk)
    assert main(["--draft", "dspark", "--k", "3", "--num-prompts", "1"]) == code
    shown = capsys.readouterr().out
    assert asked == [("dspark", 3)]
    assert f"position 0: difference {0.7 - correct / 10:+.4f}, {relation} 0.05" in shown
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in shown.splitlines() if "│" in line
    ]
    assert rows == [
        ["0", "0.7000", "0.7000", f"{correct / 10:.4f}", f"{0.7 - correct / 10:+.4f}", f"{correct / 10:.4f}"],
        ["1", "0.2000", "0.2000", "0.2000", "+0.0000", "0.3333"],
        ["2", "0.1000", "0.1000", "0.1000", "+0.0000", "0.2500"],
    ]


def test_any_prompts_of_any_verifier(
    faked: FakeGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A draft in a folder of its own, its own verifier, and a file of prompts in a wording."""
    sums = Walk(20, counted=[20, 9, 8], correct=[14, 3, 2], matched=[14, 2, 1], tokens=3, greedy=3)
    asked: list[str] = []
    monkeypatch.setattr(
        served_accuracy, "walked", lambda _, draft, verifier, k: asked.append(verifier) or sums
    )
    write_pair(tmp_path)
    (tmp_path / "q.jsonl").write_text('{"question": "why"}\n{"question": "how"}\n')
    words = ["--draft", str(tmp_path / "dflash"), "--k", "3", "--data", f"mine={tmp_path / 'q.jsonl'}"]
    assert main([*words, "--template", "mine=Q: {prompt}\\nA:"]) == 0
    assert [body["prompt"] for body in faked.bodies] == ["Q: why\nA:", "Q: how\nA:"]
    assert asked == [str(tmp_path / "verifier")]
    assert main([*words, "--template", "other={prompt}"]) == 1


def test_what_cannot_be_compared_is_exit_code_1(
    faked: FakeGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(counters, "_SETTLE_S", 0.0)
    monkeypatch.setattr(served_accuracy, "walked", lambda *arguments: WALK)
    faked.lag = 1000
    assert main(["--draft", "dflash", "--k", "3", "--num-prompts", "1"]) == 1
    assert (
        "the server counted 0 drafts and [0, 0, 0] accepted, its answers tell of 10"
        in capsys.readouterr().err
    )
    assert main(["--draft", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("t5gemma2: ")
