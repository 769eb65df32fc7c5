"""The adapter over a stand-in for `AsyncLLM`: upkeep on the loop, prompts rendered before they reach the engine."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.exceptions import EngineDeadError

from app import vllm_engine
from app.engine import EngineDead, GenerateRequest, InvalidRequest, Sampling
from app.vllm_engine import VllmEngine

pytestmark = pytest.mark.anyio


class Renderer:
    default_cmpl_tok_params = "limits"

    def get_eos_token_id(self) -> int | None:
        return 1

    def render_cmpl(self, prompts: list[Any], limits: Any) -> list[Any]:
        assert limits == self.default_cmpl_tok_params
        if not all(prompt["encoder_prompt"]["prompt_token_ids"] for prompt in prompts):
            raise VLLMValidationError("The encoder prompt cannot be empty", parameter="prompt")
        return [{"type": "enc_dec", **prompt} for prompt in prompts]


class Llm:
    """Counts what it is asked for."""

    model_config = SimpleNamespace(
        is_encoder_decoder=True,
        max_model_len=8,
        dtype="torch.float32",
        get_vocab_size=lambda: 9,
        get_diff_sampling_param=dict,
        try_get_generation_config=dict,
    )
    vllm_config = SimpleNamespace(speculative_config=None)
    renderer = Renderer()
    output_handler: asyncio.Task[None] | None = None

    def __init__(self) -> None:
        self.flushed = self.asked = self.emptied = 0
        self.often = asyncio.Event()
        self.dead = False
        self.called: list[Any] = []
        self.prompts: list[Any] = []

    def get_tokenizer(self) -> None:
        return None

    async def get_supported_tasks(self) -> tuple[str, ...]:
        if self.dead:
            raise EngineDeadError
        self.asked += 1
        return ("generate",)

    async def do_log_stats(self) -> None:
        self.flushed += 1
        if self.flushed == 1:
            raise OSError("no room")
        if self.flushed > 2:
            self.often.set()

    async def check_health(self) -> None:
        return None

    async def reset_encoder_cache(self) -> None:
        self.emptied += 1

    @property
    def engine_core(self) -> Any:
        async def call_utility_all_async(method: str, *arguments: Any) -> list[Any]:
            if self.dead:
                raise EngineDeadError
            self.called.append((method, *arguments))
            return []

        return SimpleNamespace(call_utility_all_async=call_utility_all_async)

    def shutdown(self) -> None:
        return None

    async def generate(self, prompt: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        self.prompts.append(prompt)
        yield SimpleNamespace(outputs=[], finished=True, metrics=None, num_cache_creation_tokens=0)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Llm:
    monkeypatch.setattr(vllm_engine, "ThreadSafeTokenizer", lambda tokenizer: tokenizer)
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "0.001")
    return Llm()


async def test_stat_loggers_are_flushed_until_the_end(llm: Llm) -> None:
    """Their lists grow with every step otherwise. However often health is asked for, there is one upkeep, which a
    failure does not end.
    """
    engine = VllmEngine(llm, 8)
    for _ in range(3):
        await engine.check_health()
    await asyncio.wait_for(llm.often.wait(), 5)
    assert llm.asked == 1
    await asyncio.to_thread(engine.shutdown)
    await asyncio.sleep(0.01)
    flushed = llm.flushed
    await asyncio.sleep(0.01)
    assert llm.flushed == flushed


async def test_the_end_is_no_death(llm: Llm) -> None:
    """vLLM's task that reads outputs is gone before the engine's process is, whose end it would log as a death, with a
    traceback, when an idle server gets SIGTERM (N23).
    """
    handler = llm.output_handler = asyncio.create_task(asyncio.sleep(60))
    engine = VllmEngine(llm, 8)
    engine.shutdown()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(handler, 5)


async def test_upkeep_of_a_dead_engine_ends(llm: Llm) -> None:
    llm.dead = True
    engine = VllmEngine(llm, 8)
    await engine.check_health()
    await asyncio.sleep(0.01)
    assert engine._upkeep is not None and engine._upkeep.done() and engine._upkeep.exception() is None
    engine.shutdown()


async def test_every_core_is_asked(llm: Llm) -> None:
    """By methods that the engine core has, and that a dead one does not answer."""
    engine = VllmEngine(llm, 8)
    await engine.respond()
    await engine.set_draft_length(3)
    assert llm.called == [("get_supported_tasks",), ("set_draft_length", 3)]
    assert callable(EngineCore.get_supported_tasks)
    llm.dead = True
    with pytest.raises(EngineDead):
        await engine.respond()


async def test_prompts_arrive_rendered(llm: Llm) -> None:
    """A rendered prompt has a type; vLLM would send a raw one through a thread, and will refuse it one day."""
    steps = [s async for s in VllmEngine(llm, 8).generate(GenerateRequest("a", (2, 5), Sampling(), True))]
    assert [(step.finished, step.cached_tokens) for step in steps] == [(True, 2)]
    (prompt,) = llm.prompts
    assert prompt["type"] == "enc_dec" and prompt["encoder_prompt"]["prompt_token_ids"] == [2, 5]


async def test_sampling_goes_by_vllms_names(llm: Llm) -> None:
    """Whatever the port's `Sampling` has, `SamplingParams` gets under the same name."""
    one = Sampling(
        n=2,
        temperature=0.5,
        top_k=3,
        seed=4,
        stop=("a",),
        stop_token_ids=(7,),
        logprobs=2,
        logprob_token_ids=(5, 6),
        logit_bias={3: 1.0},
        structured_outputs={"regex": "a+"},
        repetition_detection={"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 2},
    )
    made = VllmEngine(llm, 8)._params(one, stream=True)
    assert {field.name for field in fields(Sampling)} <= set(inspect.signature(made.from_optional).parameters)
    assert (made.n, made.temperature, made.top_k, made.seed) == (2, 0.5, 3, 4)
    assert (made.stop, made.stop_token_ids, made.logit_bias) == (["a"], [7], {3: 1.0})
    assert (made.logprobs, made.logprob_token_ids) == (None, [5, 6])  # vLLM takes one or the other
    assert made.structured_outputs.regex == "a+" and made.repetition_detection.max_pattern_size == 3
    plain = VllmEngine(llm, 8)._params(Sampling(logprobs=2), stream=False)
    assert (plain.logprobs, plain.output_kind) == (2, RequestOutputKind.FINAL_ONLY)
    assert plain.structured_outputs is plain.repetition_detection is plain.allowed_token_ids is None


@pytest.mark.parametrize(
    ("own", "named", "ids"), [(1, None, {1}), (1, 2, {1, 2}), (1, [1, 3], {1, 3}), (None, 3, {3})]
)
async def test_every_end_token_is_known(
    llm: Llm, own: int | None, named: Any, ids: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer's, and the generation config's, as vLLM takes them together."""
    monkeypatch.setattr(llm.renderer, "get_eos_token_id", lambda: own)
    monkeypatch.setattr(llm.model_config, "try_get_generation_config", lambda: {"eos_token_id": named})
    assert VllmEngine(llm, 8).facts.end_ids == ids


async def test_the_renderers_refusal_is_the_clients(llm: Llm) -> None:
    with pytest.raises(InvalidRequest, match="empty") as refused:
        [s async for s in VllmEngine(llm, 8).generate(GenerateRequest("a", (), Sampling(), True))]
    assert refused.value.param == "prompt" and not llm.prompts


async def test_bad_words_arrive_as_sequences(llm: Llm) -> None:
    """vLLM's own division of words does not replace ours."""
    made = VllmEngine(llm, 8)._params(Sampling(bad_words=[[5], [6, 7]]), stream=True)
    made.update_from_tokenizer(None)
    assert made.bad_words_token_ids == [[5], [6, 7]]


async def test_the_step_of_a_request_that_was_cut_off_is_not_counted_either(
    llm: Llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM hands a step's numbers over after its outputs: a time-out may fall between the two."""
    counted: list[str] = []
    manager = SimpleNamespace(stat_loggers=[counted.append])
    monkeypatch.setattr(llm, "logger_manager", manager, raising=False)

    def step(name: str) -> None:
        for logger in manager.stat_loggers:
            logger(name)

    async def cut_off() -> None:
        async with asyncio.timeout(0.01), VllmEngine(llm, 8).uncounted():
            asyncio.get_running_loop().call_later(0.03, step, "cut off")
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await cut_off()
    await asyncio.sleep(0.05)
    step("a client's")
    assert counted == ["a client's"]


async def test_requests_of_the_servers_own_leave_no_encoder_states(
    llm: Llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm, "logger_manager", SimpleNamespace(stat_loggers=[]), raising=False)
    async with VllmEngine(llm, 8).uncounted():
        assert llm.emptied == 0
    assert llm.emptied == 1
