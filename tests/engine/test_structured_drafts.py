"""JSON extraction with drafts: a schema as people write them, and every family's output is the verifier's own.

What a grammar forbids is cut from a draft before it is verified, in vLLM's scheduler; nothing that is cut counts as
drafted. A draft is made in parallel, so a grammar cannot lead it while it is made. Requests ask for compact JSON
themselves, beside one that does not.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from vllm.sampling_params import StructuredOutputsParams

import plugin
from plugin.drafts.families import FAMILIES
from tests.engine.harness import Answer, Job, engine

pytestmark = pytest.mark.engine

DEMO = Path(plugin.__file__).parent / "demo"
K = 7
NEW_TOKENS = 400


INVOICE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "benchmarks" / "invoice.json").read_text())
"""Nested objects, enums, arrays with bounds, patterns, an alternative. Every string and array has an end."""
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
QUESTIONS = (
    "Tom has 12 apples and buys 30 more, then gives 7 away. How many apples are left?",
    "A book costs 12 dollars. How much do 5 books cost?",
)


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    """Every question bound by the schema, and free, so that both kinds share batches; and one with white space."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "verifier")
    made = []
    for text in QUESTIONS:
        ids = tuple(tokenizer(text).input_ids)
        made += [Job(ids, NEW_TOKENS, extra=bound(compact=True)), Job(ids, 40, join_at=5)]
    return [*made, Job(ids, 40, join_at=8, extra=bound(compact=False))]


def bound(compact: bool) -> dict[str, Any]:
    return {"structured_outputs": StructuredOutputsParams(json=INVOICE, disable_any_whitespace=compact)}


def white_space(text: str) -> list[str]:
    """That of a JSON text outside of its strings."""
    return re.findall(r"\s", STRING.sub("", text))


@pytest.fixture(scope="module")
def alone(jobs: list[Job]) -> list[Answer]:
    """Without a draft."""
    with engine(DEMO / "verifier", max_model_len=512) as running:
        began = time.perf_counter()
        answers = running.run(jobs)
        print(f"none: {time.perf_counter() - began:.2f} s, {len(running.scheduled)} steps")
    return answers


@pytest.mark.parametrize("family", FAMILIES)
def test_a_schema_with_a_draft(jobs: list[Job], alone: list[Answer], family: str) -> None:
    with engine(DEMO / "verifier", DEMO / family, K, max_model_len=512) as running:
        before = running.counters
        began = time.perf_counter()
        answers = running.run(jobs)
        seconds = time.perf_counter() - began
        counters, steps, blocks = running.counters - before, len(running.scheduled), len(running.blocks)
        drafted: Counter[int] = Counter()
        for step in running.steps:
            drafted.update({k: count for k, (count, _) in step.drafted.items()})
        accepted = sum(sum(hits) for step in running.steps for _, hits in step.drafted.values())
    print(
        f"{family}: {seconds:.2f} s, {steps} steps, acceptance {counters.acceptance:.2f}, "
        f"length {1 + counters.accepted_tokens / counters.drafts:.2f}"
    )
    for answer, want in zip(answers, alone, strict=True):
        assert answer.tokens == want.tokens
        assert answer.finish_reason == want.finish_reason
    *compact, loose = answers[::2]
    whole = [answer for answer in compact if answer.finish_reason == "stop"]
    assert whole  # where the schema ends, which may be anywhere in a draft
    for answer in whole:
        assert list(json.loads(answer.text)) == list(INVOICE["properties"])
    assert not any(white_space(answer.text) for answer in compact)
    assert white_space(loose.text)  # or the control is none: the demo writes blanks where it may
    assert counters.draft_tokens < K * counters.drafts  # what the grammar cut is not counted
    # In what K brought it is, as rejected: each block but the last of a request was to be verified, whole.
    assert set(drafted) == {K} and drafted[K] == blocks - len(jobs)
    assert accepted == counters.accepted_tokens
