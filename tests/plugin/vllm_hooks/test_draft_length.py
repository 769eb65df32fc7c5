"""K while the engine runs: the utility, what the engine starts with, and what a speculative config becomes."""

import inspect
import pickle
from types import SimpleNamespace

import pytest
from vllm.config import ParallelConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.engine.core_client import AsyncMPClient, DPLBAsyncMPClient
from vllm.v1.outputs import DraftTokenIds

import plugin
from plugin.drafts.checkpoint import DEMO
from plugin.drafts.families import FAMILIES
from plugin.vllm_hooks import draft_length
from plugin.vllm_hooks.draft_length import FIRST_LENGTH, set_draft_length
from plugin.vllm_hooks.hook import HookError
from plugin.vllm_hooks.step_stats import clock_of


@pytest.fixture(autouse=True)
def _registered():
    plugin.register()


def core(lookup=(7,) * 5, block=7):
    scheduler = SimpleNamespace(dynamic_sd_lookup=lookup and list(lookup), num_spec_tokens=block)
    return SimpleNamespace(scheduler=scheduler)


@pytest.mark.parametrize("k", [0, 1, 7])
def test_every_batch_size_has_the_new_length(k):
    engine = core()
    set_draft_length(engine, k)
    assert engine.scheduler.dynamic_sd_lookup == [k] * 5


def test_lengths_that_no_block_has_and_engines_without_a_draft_are_refused():
    for k in (-1, 8):
        with pytest.raises(ValueError, match=rf"K is {k}, but the draft allows 0 \.\.\. 7"):
            set_draft_length(core(), k)
    with pytest.raises(ValueError, match="no draft is served"):
        set_draft_length(core(lookup=None, block=0), 0)


def test_the_engine_core_has_the_utility_and_the_clients_can_call_it_on_every_engine(monkeypatch):
    assert EngineCore.set_draft_length is set_draft_length
    assert "getattr(self, method_name)" in inspect.getsource(EngineCoreProc._handle_client_request)
    for client in AsyncMPClient, DPLBAsyncMPClient:
        parameters = list(inspect.signature(client.call_utility_all_async).parameters)
        assert parameters == ["self", "method", "args"]
    monkeypatch.setattr(EngineCore, "set_draft_length", lambda self, k: None)
    with pytest.raises(HookError, match="a set_draft_length of its own"):
        draft_length.utility()


def test_the_scheduler_still_reads_its_list_in_every_step():
    source = inspect.getsource(Scheduler.schedule)
    assert "self.dynamic_sd_lookup[" in source and "num_spec_tokens_to_schedule" in source
    assert "self.dynamic_sd_lookup is None" in source  # what turns placeholder drafts off


def test_drafts_are_no_more_than_were_asked_for():
    taken = {}
    scheduler = SimpleNamespace(
        is_encoder_decoder=True,
        dynamic_sd_lookup=[2, 2],
        num_spec_tokens=7,
        requests={"a": SimpleNamespace(is_finished=lambda: False, is_prefill_chunk=False)},
        structured_output_manager=SimpleNamespace(
            validate_tokens=lambda request, tokens: taken.setdefault("a", tokens)[:1]
        ),
    )
    Scheduler.update_draft_token_ids(scheduler, DraftTokenIds(["a"], [[0, 0, 0, 0]]))
    assert taken == {"a": [0, 0]}
    assert clock_of(scheduler).cut == {"a": 2}  # of which the grammar left one


def speculative(given, **flags):
    """The engine arguments that have it, and what vLLM makes of it."""
    arguments = EngineArgs(model=str(DEMO / "verifier"), speculative_config=given, **flags)
    return arguments, arguments.create_speculative_config(arguments.create_model_config(), ParallelConfig())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["family", "dflash", None])
def test_the_trained_block_is_drafted_at_every_k(family, method):
    given = {"model": str(DEMO / family), "num_speculative_tokens": 3}
    if method is not None:
        given["method"] = family if method == "family" else method
    arguments, created = speculative(given)
    assert (created.method, created.num_speculative_tokens) == ("dflash", 7)
    assert getattr(created, FIRST_LENGTH) == 3
    assert (
        getattr(pickle.loads(pickle.dumps(created)), FIRST_LENGTH) == 3
    )  # on its way to the engine's process
    assert arguments.speculative_config == given


def test_a_short_block_is_vllms_own_way():
    given = {"model": str(DEMO / "dflash"), "num_speculative_tokens": 3, "short_block": True}
    _, created = speculative(given)
    assert created.num_speculative_tokens == getattr(created, FIRST_LENGTH) == 3
    assert given["short_block"] is True


def test_flags_of_their_own_are_read_like_the_config():
    """`vllm serve VERIFIER --spec-model DRAFT --spec-tokens 3` drafts the whole block, too."""
    flags = {"spec_model": str(DEMO / "dflare"), "spec_method": "dflare", "spec_tokens": 3}
    arguments, created = speculative(None, **flags)
    assert (created.method, created.num_speculative_tokens, getattr(created, FIRST_LENGTH)) == (
        "dflash",
        7,
        3,
    )
    assert {flag: getattr(arguments, flag) for flag in flags} == flags
    assert arguments.speculative_config is None
    _, mixed = speculative({"model": flags["spec_model"]}, spec_tokens=3)
    assert (mixed.num_speculative_tokens, getattr(mixed, FIRST_LENGTH)) == (7, 3)
    with pytest.raises(ValueError, match="mutually exclusive"):
        speculative({"model": flags["spec_model"], "num_speculative_tokens": 2}, spec_tokens=3)
