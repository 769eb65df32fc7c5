"""What the front end does for a request, in function calls, which no machine makes more or fewer; and that it does what
vLLM's own way does."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.renderers.hf import HfRenderer
from vllm.renderers.inputs.preprocess import parse_model_prompt

from tests.engine.harness import InProcessEngine, engine

pytestmark = pytest.mark.engine

REQUESTS = 16
CALLS = 475
"""A request at most, a tenth above what was counted; vLLM's own way takes 874."""


@pytest.fixture(scope="module")
def running(verifier: Path) -> Iterator[InProcessEngine]:
    with engine(verifier, max_num_seqs=REQUESTS) as made:
        yield made


def add(running: InProcessEngine, prompts: list[list[int]]) -> None:
    """As `LLM.generate` does."""
    llm, renderer = running.llm, running.llm.renderer
    params = SamplingParams(temperature=0, max_tokens=1)
    for i, ids in enumerate(prompts):
        prompt = parse_model_prompt(llm.model_config, {"prompt_token_ids": ids})
        (rendered,) = renderer.render_cmpl([prompt], renderer.default_cmpl_tok_params.with_kwargs())
        llm.add_request(str(i), rendered, params)


def drain(running: InProcessEngine) -> None:
    while running.llm.has_unfinished_requests():
        running.llm.step()


def calls(running: InProcessEngine) -> float:
    """Function calls a request, the engine core's included, which is in this process."""
    prompts = [[2, *range(5, 68), i] for i in range(5, 5 + REQUESTS)]
    add(running, prompts)  # what is kept from then on
    drain(running)
    profile = cProfile.Profile()
    profile.enable()
    add(running, prompts)
    profile.disable()
    drain(running)
    stats: Any = pstats.Stats(profile)
    return float(stats.total_calls / REQUESTS)


def test_a_request_is_added_in_few_calls(running: InProcessEngine) -> None:
    assert calls(running) < CALLS


def test_control_vllms_own_way_takes_more(running: InProcessEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.llm.renderer, "_is_direct", False)
    assert calls(running) > CALLS


@pytest.mark.parametrize("length", [1, 64, 320])
def test_what_is_rendered_is_what_vllms_way_renders(running: InProcessEngine, length: int) -> None:
    renderer: Any = running.llm.renderer
    ids = [2 + i % 50 for i in range(length)]
    prompt = {"prompt_token_ids": ids, "prompt": "a text", "cache_salt": "salt"}

    def rendered() -> Any:
        parsed = parse_model_prompt(running.llm.model_config, dict(prompt))
        (found,) = renderer.render_cmpl([parsed], renderer.default_cmpl_tok_params)
        return found

    assert renderer._is_direct
    ours = rendered()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renderer, "_process_multimodal", HfRenderer._process_multimodal.__get__(renderer))
        vllms = rendered()
    for part in ("encoder_prompt", "decoder_prompt"):
        mine, theirs = dict(ours[part]), dict(vllms[part])
        items = [each.pop("mm_kwargs", None) for each in (mine, theirs)]
        assert mine == theirs
        if items[0] is not None:
            (one,), (other,) = (item["text"] for item in items)
            assert np.array_equal(one["text"].data, other["text"].data)
            assert type(one["text"].field) is type(other["text"].field)
    assert ours["encoder_prompt"]["prompt_token_ids"] == ids


def test_the_servers_way_is_the_same(running: InProcessEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`vllm serve` renders asynchronously; nothing of it waits for a thread."""
    renderer: Any = running.llm.renderer
    parsed = parse_model_prompt(running.llm.model_config, {"prompt_token_ids": [2, 5, 6]})
    sent: list[Any] = []
    monkeypatch.setattr(renderer._mm_executor, "submit", lambda *call: sent.append(call))
    (ours,) = asyncio.run(renderer.render_cmpl_async([parsed], renderer.default_cmpl_tok_params))
    (again,) = renderer.render_cmpl([parsed], renderer.default_cmpl_tok_params)
    assert ours["decoder_prompt"]["mm_hashes"] == again["decoder_prompt"]["mm_hashes"]
    assert sent == []


def test_names_that_a_caller_gives_go_vllms_way(running: InProcessEngine) -> None:
    """Which checks them."""
    renderer: Any = running.llm.renderer
    prompt = {"prompt_token_ids": [2, 5, 6], "multi_modal_uuids": {"text": ["one", "too many"]}}
    parsed = parse_model_prompt(running.llm.model_config, prompt)
    with pytest.raises(ValueError, match="same length"):
        renderer.render_cmpl([parsed], renderer.default_cmpl_tok_params)
