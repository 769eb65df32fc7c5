"""What the gateway relies on in vLLM is still there: request fields, signatures, and the detokenizer's manners."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.generate.base.protocol import SpeculativeDecodingMetrics
from vllm.entrypoints.openai.completion.protocol import CompletionRequest as StockRequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import BaseRenderer
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.metrics.loggers import StatLoggerBase, StatLoggerManager
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

from app.completions.fields import MAX_PROMPTS
from app.completions.metrics import SpeculativeDecoding
from app.completions.request import OWN_FIELDS, REFUSED, CompletionRequest, StructuredOutputs
from app.text.hf_tokenizer import ThreadSafeTokenizer

pytestmark = pytest.mark.engine


def test_request_fields() -> None:
    """Ours are vLLM's and a listed few, with the same defaults (request_id: made later, not while parsing)."""
    ours, stock = CompletionRequest.model_fields, StockRequest.model_fields
    assert set(ours) - OWN_FIELDS == set(stock)
    for name in set(stock) - {"request_id"}:
        assert ours[name].get_default(call_default_factory=True) == stock[name].get_default(
            call_default_factory=True
        )
    assert set(stock) >= set(REFUSED)


def test_limits() -> None:
    import vllm.envs as envs

    assert envs.VLLM_MAX_COMPLETION_PROMPTS == MAX_PROMPTS


def test_structured_outputs_fields() -> None:
    stock = {
        name for name in inspect.signature(StructuredOutputsParams).parameters if not name.startswith("_")
    }
    assert {field.alias or name for name, field in StructuredOutputs.model_fields.items()} == stock


def test_acceptance_schema() -> None:
    """Readers of vLLM's schema read ours, which also says how many steps verified how many draft tokens."""
    stock = set(SpeculativeDecodingMetrics.model_fields)
    assert set(SpeculativeDecoding.model_fields) == stock | {"steps_by_k"}
    found = RequestSpecDecodeMetrics.new(3)
    assert set(vars(found)) == {
        "num_spec_tokens",
        "histogram",
        "num_draft_tokens",
        "per_step_accepted",
        "per_step_drafted",
    }


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (AsyncLLM.from_vllm_config, {"vllm_config", "usage_context", "stat_loggers"}),
        (AsyncLLM.generate, {"prompt", "sampling_params", "request_id", "session_id"}),
        (AsyncLLM.check_health, set()),
        (AsyncLLM.do_log_stats, set()),
        (AsyncLLM.get_supported_tasks, set()),
        (BaseRenderer.render_cmpl, {"prompts", "tok_params"}),
        (parse_model_prompt, {"model_config", "prompt"}),
        (freeze_gc_heap, set()),
        (AsyncLLM.shutdown, set()),
        (StatLoggerBase.record, {"scheduler_stats", "iteration_stats"}),
        (
            SamplingParams.from_optional,
            {"output_kind", "skip_clone", "logprob_token_ids", "repetition_detection"},
        ),
        (RequestOutput.__init__, {"outputs", "finished", "metrics"}),
        (CompletionOutput, {"index", "text", "token_ids", "logprobs", "finish_reason", "stop_reason"}),
        (AsyncEngineArgs, {"speculative_config", "per_request_spec_decode_metrics", "hf_overrides", "seed"}),
    ],
)
def test_signatures(function: Any, names: set[str]) -> None:
    assert names <= set(inspect.signature(function).parameters)


def test_steps_are_counted_by_a_list_of_loggers() -> None:
    """The warm-up empties it meanwhile (N01)."""
    assert "in self.stat_loggers" in inspect.getsource(StatLoggerManager.record)
    assert "logger_ref[0].record(" in inspect.getsource(AsyncLLM._run_output_handler)


@pytest.fixture(scope="module")
def tokenizer(verifier: Path) -> Any:
    return AutoTokenizer.from_pretrained(verifier)


def test_tokenizer_agrees(tokenizer: Any) -> None:
    """The copy that many threads use gives what transformers gives (C17)."""
    ours = ThreadSafeTokenizer(tokenizer)
    for text in ("Hello world", " two  spaces", "A👩‍👩‍👧é中", "line\nbreak\ttab", "<eos> in text"):
        for special in (True, False):
            assert ours.encode(text, special) == tokenizer.encode(text, add_special_tokens=special)
        ids = ours.encode(text, True)
        assert ours.decode(ids, True) == tokenizer.decode(ids, skip_special_tokens=True)


def pieces(tokenizer: Any, ids: list[int], stop: list[str], sizes: list[int]) -> tuple[list[str], str | None]:
    """The deltas of vLLM's detokenizer for these ids in steps of these sizes, and the stop string that it met."""
    params = SamplingParams(stop=stop, max_tokens=len(ids))
    request: Any = SimpleNamespace(
        request_id="x", prompt_token_ids=[2], prompt_embeds=None, sampling_params=params, external_req_id="x"
    )
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    shown, position = [], 0
    for size in [*sizes, len(ids)]:
        step = ids[position : position + size]
        position += size
        if not step:
            break
        met = detokenizer.update(step, False)
        done = met is not None or position >= len(ids)
        shown.append(detokenizer.get_next_output_text(done, True))
        if done:
            return shown, met
    return shown, None


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=30),
    stop=st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=3), max_size=3
    ),
    sizes=st.lists(st.integers(1, 8), max_size=20),
)
def test_stop_strings_and_characters(tokenizer: Any, text: str, stop: list[str], sizes: list[int]) -> None:
    """For any text, stops and steps (a draft makes steps of several tokens) no piece shows any of the stop string
    (A11), and none holds a replacement character, for every character here gets completed (A15).
    """
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(ids)
    shown, met = pieces(tokenizer, ids, stop, sizes)
    places = [whole.index(s) for s in stop if s in whole]
    assert "".join(shown) == (whole[: min(places)] if places else whole)
    assert (met is None) == (not places)
    assert "\ufffd" not in "".join(shown)
