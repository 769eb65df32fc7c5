"""One tiny request of every kind before the server says that it is ready.

What an engine builds when it is first needed (Triton kernels and their variants, compiled grammars' machinery, lazy
imports), the first user of that kind would wait for, and with him all who share the batch: eleven seconds for the
first sampled request on an H200. It also runs the first draft step, so that a checkpoint which loads and cannot run
is refused at the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from app.drafts.identity import Identity
from app.engine import (
    Engine,
    EngineDead,
    EngineFacts,
    EngineFailure,
    GenerateRequest,
    InvalidRequest,
    Progress,
    Sampling,
)

log = logging.getLogger("app.warm_up")

LIMIT_S = 300.0
"""Whatever is not built by then is left to the first requests."""
PROMPT = "A train travels 60 miles in 2 hours. What is its average speed?"
LONG_PROMPT = 1024
"""Encoder tokens of the long prompt, where the limits allow it."""
TOKENS = 4
"""Output tokens of a request: the first step, and one that verifies a draft's block."""
LOGPROBS = (0, 1, 3, 7, 10, 15, 20)
"""Each selects another variant of vLLM's top-k kernel: by the next power of two, one, and multiples of 16."""


class WarmUpError(RuntimeError):
    """The engine was built and cannot serve; the message says with what and at which kind of request."""


def kinds(facts: EngineFacts, tokens: Sequence[int]) -> dict[str, Sampling]:
    """Name -> how to sample, for each field that changes what the engine runs, alone and with those that it meets in
    other kernels. `tokens` are some ids of the vocabulary.
    """
    greedy = Sampling(temperature=0, max_tokens=min(TOKENS, facts.max_model_len - 1), ignore_eos=True)
    sampled = replace(greedy, temperature=1.0, seed=1)
    penalties: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
    structured = {
        "regex": "[a-z]+",
        "choice": ["yes", "no"],
        "grammar": 'root ::= "yes" | "no"',
        "json_object": True,
        "json": {"type": "object", "properties": {"a": {"type": "integer"}}},
        # Of those that vLLM's first choice of grammar engine cannot do.
        "json of the second grammar engine": {"type": "integer", "multipleOf": 3},
    }
    found = {
        "greedy": greedy,
        "sampled": sampled,
        "sampled without a seed": replace(sampled, seed=None),
        "top_k": replace(sampled, top_k=5),
        "top_p": replace(sampled, top_p=0.9),
        "top_k and top_p": replace(sampled, top_k=5, top_p=0.9),
        "n": replace(sampled, n=2),
        "penalties": replace(greedy, **penalties),
        "penalties, sampled": replace(sampled, **penalties),
        "bad_words": replace(greedy, bad_words=(tuple(tokens[:2]),)),
        "allowed_token_ids": replace(greedy, allowed_token_ids=tuple(tokens)),
        "min_tokens": replace(
            greedy, min_tokens=min(2, greedy.max_tokens), ignore_eos=False, stop_token_ids=(tokens[-1],)
        ),
        **{f"logprobs {count}": replace(greedy, logprobs=count) for count in LOGPROBS},
        **{
            f"structured outputs, {name}": replace(
                greedy, ignore_eos=False, structured_outputs={name.split()[0]: value}
            )
            for name, value in structured.items()
        },
        "all at once": replace(
            sampled,
            **penalties,
            top_k=5,
            top_p=0.9,
            logprobs=3,
            bad_words=(tuple(tokens[:2]),),
            structured_outputs={"regex": "[a-z]+"},
        ),
    }
    if not facts.has_draft:
        found |= {
            "min_p": replace(sampled, min_p=0.1),
            "logit_bias": replace(greedy, logit_bias={tokens[0]: 1.0}),
            "logprob_token_ids": replace(greedy, logprobs=1, logprob_token_ids=tuple(tokens[:2])),
        }
    return found


async def warm_up(
    engine: Engine,
    identity: Identity,
    progress: Progress,
    lengths: Sequence[int] = (),
    limit_s: float = LIMIT_S,
) -> None:
    """Sends each kind alone, then a long prompt, then all kinds as one crowd, then some at each K of `lengths`, whose
    last stays; nothing of it is counted anywhere.

    Raises:
        WarmUpError: the engine died, or failed on a request.
    """
    kind = "nothing"
    try:
        async with asyncio.timeout(limit_s):
            facts = engine.facts
            prompt = engine.tokenizer.encode(PROMPT, True)[: facts.max_encoder_len]
            every = kinds(facts, sorted(set(prompt)))
            long = (prompt * LONG_PROMPT)[: min(LONG_PROMPT, facts.max_encoder_len)]
            async with engine.uncounted():
                for number, (kind, sampling) in enumerate(every.items(), 1):
                    progress("warm-up", f"{number}/{len(every) + 2}: {kind}")
                    await _run(engine, kind, prompt, sampling)
                kind = "a long prompt"
                progress("warm-up", f"{len(every) + 1}/{len(every) + 2}: {kind}")
                await _run(engine, kind, long, every["greedy"])
                kind = "all kinds in one batch"
                progress("warm-up", f"{len(every) + 2}/{len(every) + 2}: {kind}")
                crowd = (_run(engine, name, prompt, sampling, "crowd") for name, sampling in every.items())
                await asyncio.gather(*crowd)
                for k in lengths:
                    kind = f"K = {k}"
                    progress("warm-up", kind)
                    await engine.set_draft_length(k)
                    for name in ("greedy", "sampled"):
                        await _run(engine, f"{name}, {kind}", prompt, every[name])
    except TimeoutError:
        log.warning(
            "warm-up: stopped after %g s at %r; first requests of later kinds may wait", limit_s, kind
        )
    except (EngineDead, EngineFailure) as error:
        raise cannot_run(identity, f"the first request ({kind}) failed", error) from None


def cannot_run(identity: Identity, what: str, error: Exception) -> WarmUpError:
    """The refusal of what was loaded and failed before anyone was served."""
    names = [identity.verifier.path] + ([f"the draft {identity.draft.path}"] if identity.draft else [])
    return WarmUpError(f"{' with '.join(names)} was loaded and cannot run: {what}: {error}")


async def _run(
    engine: Engine, kind: str, prompt: Sequence[int], sampling: Sampling, where: str = "alone"
) -> None:
    """One request to its end. What the engine refuses here it will refuse users, in the same words."""
    request = GenerateRequest(f"warm-up {kind}, {where}", prompt, sampling, stream=False)
    try:
        async with aclosing(engine.generate(request)) as steps:
            async for _ in steps:
                pass
    except InvalidRequest as error:
        log.info("warm-up: %s is refused by this engine: %s", kind, error)
