"""Every override of a vLLM method takes what the stock method takes, and every hook finds what it replaces.

vLLM calls these by position as well as by name, on runners that only a GPU can start: a signature that moved would
show there alone, as a request that dies.
"""

import importlib
import inspect
import pkgutil

import pytest

import plugin
from plugin.vllm_hooks import (
    adaptive_verification,
    cross_pages,
    draft_length,
    executor,
    step_stats,
    structured_output,
    v1_runner,
)
from plugin.vllm_hooks.v2 import (
    batches,
    outputs,
    quick_launch,
    requests,
    runner,
    sampler_parameters,
    sampling,
    steps,
)

OWN_SIGNATURES = {"__init__", "forward"}
"""Constructors and modules' forwards have signatures of their own, by design."""


def _plugin_classes() -> list[type]:
    plugin.register()
    found = []
    for module in pkgutil.walk_packages(plugin.__path__, "plugin."):
        if ".training" in module.name or ".demo" in module.name:
            continue
        members = vars(importlib.import_module(module.name)).values()
        found += [c for c in members if inspect.isclass(c) and c.__module__ == module.name]
    return found


def _stock(owner: type, name: str) -> object | None:
    """What `owner.name` overrides in vLLM, if anything."""
    for base in owner.__mro__[1:]:
        if base.__module__.startswith("vllm.") and name in vars(base):
            return vars(base)[name]
    return None


def _parameters(function: object) -> list[inspect.Parameter]:
    unwrapped = getattr(function, "__func__", function)
    return list(inspect.signature(unwrapped).parameters.values())


def _passes_everything_on(parameters: list[inspect.Parameter]) -> bool:
    kinds = {parameter.kind for parameter in parameters}
    return {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds


def _overrides() -> list[tuple[type, str]]:
    return [
        (owner, name)
        for owner in _plugin_classes()
        for name, member in vars(owner).items()
        if name not in OWN_SIGNATURES
        and inspect.isroutine(getattr(member, "__func__", member))
        and inspect.isroutine(getattr(stock := _stock(owner, name), "__func__", stock))
    ]


def mismatch(owner: type, name: str) -> str | None:
    """How an override differs from what it overrides, or None."""
    ours, stock = _parameters(vars(owner)[name]), _parameters(_stock(owner, name))
    if _passes_everything_on(ours):
        return None
    expected = [p.name for p in stock if p.kind is not inspect.Parameter.VAR_KEYWORD]
    found = [p.name for p in ours if p.kind is not inspect.Parameter.VAR_KEYWORD]
    extra = [p for p in ours[len(stock) :] if p.kind is not inspect.Parameter.VAR_KEYWORD]
    if found[: len(expected)] != expected or any(p.default is inspect.Parameter.empty for p in extra):
        return f"{owner.__name__}.{name} takes {found}, vLLM's takes {expected}"
    return None


def test_overrides_take_what_vllm_gives():
    overrides = _overrides()
    assert {owner.__name__ for owner, _ in overrides} >= {
        "T5Gemma2ModelState",
        "DecodeGraphManager",
        "SampledGraphs",
        "EncoderGraphs",
        "OneGraphSpeculator",
        "MarkovSpeculator",
        "BlockProposer",
        "SelfCache",
        "T5Gemma2Processor",
    }
    assert [found for owner, name in overrides if (found := mismatch(owner, name))] == []


def test_control_a_moved_parameter_is_seen(monkeypatch):
    from plugin.verifier.model_state import T5Gemma2ModelState

    monkeypatch.setattr(T5Gemma2ModelState, "add_request", lambda self, new_req_data, req_index: None)
    assert "add_request takes" in (mismatch(T5Gemma2ModelState, "add_request") or "")


@pytest.mark.parametrize(
    "install",
    [
        cross_pages.encoder_inputs_before_the_first_token,
        draft_length.utility,
        draft_length.schedule_from_the_start,
        draft_length.no_more_drafts_than_asked_for,
        step_stats.steps_beside_vllms_statistics,
        executor.steps_without_a_future_of_their_own,
        structured_output.compact_json_by_request,
        v1_runner.encoder_outputs_in_batch_order,
        v1_runner.encoder_passes_in_parts,
        v1_runner.cross_slots_of_who_writes,
        v1_runner.block_proposer,
        v1_runner.no_constraints_on_no_tokens,
        v1_runner.expand_temperatures_on_cpu,
        runner.block_speculators,
        runner.taps_where_the_draft_reads_them,
        runner.encoder_passes_in_parts,
        runner.compiled_decoder_beside_encoder_inputs,
        runner.first_token_as_decode,
        runner.mixed_decode_graphs,
        sampler_parameters.parameters_where_they_are_read,
        requests.new_requests_in_one_launch,
        batches.tensors_of_decode_batches,
        steps.steps_like_the_last,
        sampling.graphs_that_sample,
        sampling.greedy_steps,
        outputs.tokens_in_one_copy,
        outputs.drafts_that_stay_on_the_device,
        adaptive_verification.verified_drafts_from_the_device,
        quick_launch.quick_launches,
    ],
    ids=lambda install: install.__name__,
)
def test_hooks_fit_on_every_platform(install):
    """Those of the other platform's runner, too; twice is once."""
    install()
    install()


def test_the_model_implements_vllms_encoder_graph_interface():
    from vllm.model_executor.models.interfaces import supports_encoder_cudagraph

    from plugin.verifier.model import T5Gemma2ForConditionalGeneration

    assert supports_encoder_cudagraph(T5Gemma2ForConditionalGeneration)
