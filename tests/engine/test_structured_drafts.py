"""JSON extraction with drafts: a schema as people write them, and every family's output is the verifier's own.

What a grammar forbids is cut from a draft before it is verified, in vLLM's scheduler; nothing that is cut counts as
drafted. A draft is made in parallel, so a grammar cannot lead it while it is made.
"""

from __future__ import annotations

import json
import time
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


def _text(longest: int, pattern: str | None = None) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern} if pattern else {"type": "string", "maxLength": longest}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


ADDRESS = _object(
    street=_text(8), zip=_text(5, "^[0-9]{5}$"), country={"enum": ["DE", "FR", "US", "JP"]},
)  # fmt: skip
INVOICE = _object(
    number=_text(9, "^INV-[0-9]{4}$"),
    issued=_text(10, "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"),
    status={"enum": ["draft", "sent", "paid", "overdue"]},
    seller=_object(name=_text(8), address=ADDRESS),
    buyer=_object(name=_text(8), address=ADDRESS, vip={"type": "boolean"}),
    lines={
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": _object(
            sku=_text(6, "^[A-Z]{2}-[0-9]{3}$"),
            quantity={"type": "integer", "minimum": 1, "maximum": 99},
            unit={"enum": ["piece", "hour", "kg"]},
            tags={"type": "array", "items": {"enum": ["new", "sale", "bulk"]}, "minItems": 1, "maxItems": 2},
        ),
    },
    paid={"anyOf": [{"type": "null"}, _object(by={"enum": ["card", "cash"]})]},
)
"""Nested objects, enums, arrays with bounds, patterns, an alternative."""
COMPACT = {"backend": "xgrammar", "disable_any_whitespace": True}
QUESTIONS = (
    "Tom has 12 apples and buys 30 more, then gives 7 away. How many apples are left?",
    "A book costs 12 dollars. How much do 5 books cost?",
)


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    """Every question twice: bound by the schema, and free, so that both kinds share batches."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "verifier")
    made = []
    for text in QUESTIONS:
        ids = tuple(tokenizer(text).input_ids)
        bound = {"structured_outputs": StructuredOutputsParams(json=INVOICE)}
        made += [Job(ids, NEW_TOKENS, extra=bound), Job(ids, 40, join_at=5)]
    return made


@pytest.fixture(scope="module")
def alone(jobs: list[Job]) -> list[Answer]:
    """Without a draft."""
    with engine(DEMO / "verifier", max_model_len=512, structured_outputs_config=COMPACT) as running:
        began = time.perf_counter()
        answers = running.run(jobs)
        print(f"none: {time.perf_counter() - began:.2f} s, {len(running.scheduled)} steps")
    return answers


@pytest.mark.parametrize("family", FAMILIES)
def test_a_schema_with_a_draft(jobs: list[Job], alone: list[Answer], family: str) -> None:
    with engine(
        DEMO / "verifier", DEMO / family, K, max_model_len=512, structured_outputs_config=COMPACT
    ) as running:
        before = running.counters
        began = time.perf_counter()
        answers = running.run(jobs)
        seconds = time.perf_counter() - began
        counters, steps = running.counters - before, len(running.scheduled)
    print(
        f"{family}: {seconds:.2f} s, {steps} steps, acceptance {counters.acceptance:.2f}, "
        f"length {1 + counters.accepted_tokens / counters.drafts:.2f}"
    )
    for answer, want in zip(answers, alone, strict=True):
        assert answer.tokens == want.tokens
        assert answer.finish_reason == want.finish_reason
    for answer in answers[::2]:
        if answer.finish_reason == "stop":  # the demo may go on about a text until its tokens end
            assert list(json.loads(answer.text)) == list(INVOICE["properties"])
    assert counters.draft_tokens < K * counters.drafts  # what the grammar cut is not counted
