"""What a repeated step leaves out is all that vLLM's step has: a vLLM with more in it fails here."""

import ast
import inspect
import textwrap
from dataclasses import fields

import pytest
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.worker.gpu.model_runner import ExecuteModelState, GPUModelRunner

from tests.plugin.vllm_hooks.v2.test_steps import CHANGES

PASSED_ON = {"num_spec_tokens_to_schedule", "has_structured_output_requests"}
FOLLOWS = {"total_num_scheduled_tokens"}
NOT_THE_RUNNERS = {
    "scheduled_encoder_input_stats", "pending_structured_output_tokens", "num_invalid_spec_tokens",
    "kv_connector_block_state", "num_common_prefix_blocks",
}  # fmt: skip
OF_CONNECTORS = {
    "kv_connector_metadata", "has_sync_kv_loads", "aux_output_connector_metadata", "ec_connector_metadata",
}  # fmt: skip


def test_every_field_of_the_schedulers_output_is_known():
    known = set(CHANGES) | PASSED_ON | FOLLOWS | NOT_THE_RUNNERS | OF_CONNECTORS | {"scheduled_cached_reqs"}
    assert known == {field.name for field in fields(SchedulerOutput)}
    cached = {"req_ids", "resumed_req_ids", "new_block_ids", "num_computed_tokens"}
    unused = {"new_token_ids", "all_token_ids", "num_output_tokens"}
    assert cached | unused == {field.name for field in fields(CachedRequestData)}
    assert ExecuteModelState._fields == (
        "input_batch", "attn_metadata", "slot_mappings_by_layer", "hidden_states", "aux_hidden_states", "dp_sync_state",
        "finished_req_ids", "ec_connector_output", "cudagraph_stats", "num_spec_tokens_to_schedule",
    )  # fmt: skip


CALLS = {
    "execute_model": {
        "_merge_ec_connector_no_forward", "_set_active_loras", "add_requests", "aux_output_connector.begin_step",
        "block_tables.apply_staged_writes", "cudagraph_manager.run_fullgraph", "cudagraph_manager.run_pw_graph",
        "ec_connector.maybe_get_output", "eplb.prepare_forward", "finish_requests", "free_states",
        "gather_batch_req_state", "intermediate_tensors.tensors.items", "kv_connector.finish_forward",
        "kv_connector.no_forward", "kv_connector.pre_forward", "lora_state.make_lora_inputs", "model",
        "model_state.dummy_inputs_embeds", "model_state.prepare_attn", "model_state.prepare_inputs",
        "model_state.prepare_inputs_embeds", "model_state.preprocess_state", "pcp_manager.get_num_tokens_for_dispatch",
        "pcp_manager.prepare_inputs_to_capture", "pp_handler.relay_aux_hidden_states", "prepare_attn",
        "prepare_dummy_attn", "prepare_inputs", "step_timing.forward_start", "step_timing.record_batch",
        "ubatch_runner.prepare", "ubatch_runner.run", "update_pp_decode_requests", "update_requests",
    },
    "update_requests": {"block_tables.append_block_ids", "kv_block_zeroer.zero_block_ids"},
    "prepare_attn": {
        "block_tables.compute_slot_mappings", "block_tables.gather_block_tables", "pcp_manager.prepare_attn",
    },
}  # fmt: skip
"""What vLLM 0.32's functions call of the runner."""


@pytest.mark.parametrize("name", CALLS)
def test_another_vllm_that_does_more_in_a_step_is_seen(name):
    """A repeated step would miss it: look at it, and then add it here."""
    source = inspect.getsource(inspect.unwrap(getattr(GPUModelRunner, name)))
    calls = [node for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Call)]
    used = {ast.unparse(call.func) for call in calls}
    assert {call.removeprefix("self.") for call in used if call.startswith("self.")} == CALLS[name]
