"""The draft's first prompts, before anyone is served: what it is worth is said in the log and in `GET /drafts`.

They are word problems, bare and in the wrappings that requests come in, answered greedily: the demo knows them, and a
real verifier writes its steps down in words. Nothing is refused for its figures.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path

from app.drafts.identity import Identity
from app.drafts.probe import Probe, promised_length
from app.engine import Engine, EngineFailure, GenerateRequest, InvalidRequest, Sampling, SpecMetrics

log = logging.getLogger("app.drafts")

TOKENS = 40
"""Output tokens of a prompt."""
LIMIT_S = 10.0
"""A verifier that needs longer is not probed."""

_QUESTIONS = (
    "A train travels 60 miles in 2 hours. What is its average speed?",
    "Tom has 12 apples and gives 5 to Anna. How many apples does he have left?",
)
_WRAPPINGS = (
    "{}",
    "Solve the problem step by step.\n\nQuestion: {}\nAnswer:",
    "Solve step by step.\n\nQuestion: {}\nAnswer:",
)
PROMPTS = tuple(wrapping.format(question) for question in _QUESTIONS for wrapping in _WRAPPINGS)


async def probe(engine: Engine, identity: Identity, limit_s: float = LIMIT_S) -> Probe | None:
    """Answers the prompts side by side, counted nowhere, and says in the log what came of it; None without a draft, or
    when it took too long.

    Raises:
        EngineDead: the engine did not survive it.
    """
    draft, k = identity.draft, identity.k
    if draft is None or k is None:
        return None
    sampling = Sampling(temperature=0, max_tokens=min(TOKENS, engine.facts.max_model_len - 1))
    try:
        async with asyncio.timeout(limit_s):
            async with engine.uncounted():
                found = await asyncio.gather(
                    *(_answer(engine, number, text, sampling) for number, text in enumerate(PROMPTS))
                )
    except TimeoutError:
        log.info("probe: %d prompts took more than %g s; the draft is not judged", len(PROMPTS), limit_s)
        return None
    parts = [one for one in found if one is not None]
    result = Probe(
        prompts=len(parts),
        drafts=sum(sum(part.histogram) for part in parts),
        draft_tokens=sum(part.num_draft_tokens for part in parts),
        accepted_tokens=sum(j * count for part in parts for j, count in enumerate(part.histogram)),
        promised=promised_length(Path(draft.path), k, draft.max_k),
    )
    if result.warning is not None:
        log.warning("probe of %s: %s", draft.name, result.warning)
    elif result.mean_acceptance_length is not None:
        log.info(
            "probe of %s: %.2f tokens a step on %d canned prompts",
            draft.name,
            result.mean_acceptance_length,
            result.prompts,
        )
    return result


async def _answer(engine: Engine, number: int, text: str, sampling: Sampling) -> SpecMetrics | None:
    ids = engine.tokenizer.encode(text, True)
    if len(ids) > engine.facts.max_encoder_len:  # half a question would tell nothing
        return None
    request = GenerateRequest(f"probe-{number}", ids, sampling, stream=False)
    spec = None
    try:
        async with aclosing(engine.generate(request)) as steps:
            async for step in steps:
                spec = next((sample.spec for sample in step.samples if sample.spec is not None), spec)
    except (InvalidRequest, EngineFailure) as error:
        log.info("probe: a prompt was not answered: %s", error)
    return spec
