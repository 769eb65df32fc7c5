"""The answers that the documents show are the demo's own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app.drafts.ledger import Counts
from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import K, streamed

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
DRAFTS = (ROOT / "docs" / "drafts.md").read_text()


def test_first_request(server: GatewayProcess) -> None:
    """README: text, usage and acceptance; docs/drafts.md: the tokens kept in each step, and what follows from them."""
    fields = json.loads(re.findall(r"-d '(.*?)'", README)[0])
    before = server.client.get("/drafts/stats").json()["lifetime"]
    answer = server.client.post("/v1/completions", json=fields).json()
    after = server.client.get("/drafts/stats").json()["lifetime"]
    shown = json.loads(re.findall(r"```json\n(.*?)```", README, re.DOTALL)[0])
    # Other tests have asked the same of this server, which then has the prompt's encoder states.
    assert (
        answer["usage"].pop("prompt_tokens_details").keys()
        == shown["usage"].pop("prompt_tokens_details").keys()
    )
    assert answer["choices"] == shown["choices"] and answer["usage"] == shown["usage"]
    assert answer.keys() == shown.keys() and answer["metrics"].keys() == shown["metrics"].keys()
    spec = answer["metrics"]["speculative_decoding"]
    steps, drafted = spec.pop("per_step_accepted"), spec.pop("per_step_drafted")
    assert {k: round(v, 3) if isinstance(v, float) else v for k, v in spec.items()} == (
        shown["metrics"]["speculative_decoding"]
    )
    engines = [int(kept) for kept in re.findall(r"^\| \d \| .* \| (\d) \| [^|]+ \|$", DRAFTS, re.MULTILINE)]
    # The last step went past the end: one more was accepted than the answer has room for.
    assert [*steps[:-1], steps[-1] + 1] == engines
    assert sum(engines) == after["accepted_tokens"] - before["accepted_tokens"]
    counts = Counts.of(K)
    for accepted, proposed in zip(engines, drafted, strict=True):
        assert proposed == K
        counts.add(1, [1] * accepted)
    stats = counts.to_json()
    positions = [
        {name: round(value, 3) if isinstance(value, float) else value for name, value in one.items()}
        for one in stats["per_position"]
    ]
    listed = [json.loads(line) for line in re.findall(r'\{"position": .*?\}', README)]
    assert listed and listed == positions[: len(listed)]
    assert f'"drafts": {counts.drafts}, "draft_tokens": {counts.draft_tokens}' in README


def test_second_request(server: GatewayProcess) -> None:
    """The OpenAI client's example and what it prints."""
    prompt, printed = re.findall(r'^prompt = "(.*)"$.*?^# (.*?)$', README, re.MULTILINE | re.DOTALL)[0]
    assert streamed(server, prompt, max_tokens=64, temperature=0) == (printed, "stop")
