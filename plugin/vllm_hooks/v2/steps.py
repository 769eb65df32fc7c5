"""Hooks into the V2 model runner's step: most steps are the one before, some tokens further on."""

from dataclasses import dataclass
from typing import Any

from plugin.vllm_hooks.hook import replace
from plugin.vllm_hooks.v2.batches import Kept, kept, next_batch
from plugin.vllm_hooks.v2.requests import append_blocks
from plugin.vllm_hooks.v2.runner import EXECUTE_MODEL, cross_kv_before_decoder

_LAST = "_t5gemma2_last_step"
"""Attribute of the runner: a `LastStep`, where its last step was one."""

UNUSED = ("lora_config", "pp_handler", "pooling_runner", "aux_output_connector", "fast_prefill")
"""Attributes of the runner that are None where the runner has nothing to do with what they are for."""


@dataclass(slots=True)
class LastStep:
    """A step that replayed a decode graph and did nothing else.

    Attributes:
        tokens, drafts: by request, as scheduled.
        names, slots: the requests, and their slots in what the runner keeps by slot.
        graph: which one.
        batch: what the runner's buffers hold.
        state: vLLM's `ExecuteModelState` behind the step.
    """

    tokens: list[tuple[str, int]]
    drafts: list[tuple[str, int]]
    names: list[str]
    slots: list[int]
    graph: Any
    batch: Kept
    state: Any

    @classmethod
    def of(cls, runner: Any, output: Any) -> "LastStep | None":
        """What the runner has just done for the scheduler's `output`; None if that was more than to replay a graph."""
        from vllm.config.compilation import CUDAGraphMode
        from vllm.v1.worker.gpu.ec_connector import NO_OP_EC_CONNECTOR
        from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR

        state, batch = runner.execute_model_state, kept(runner)
        if state is None or batch is None or batch.key is None or batch.attention is None:
            return None
        graph, names = batch.key[0], output.scheduled_cached_reqs.req_ids
        if graph.cg_mode != CUDAGraphMode.FULL or graph.num_ubatches != 1 or state.attn_metadata:
            return None
        if state.dp_sync_state is not None or runner.eplb.state is not None:
            return None
        if runner.kv_connector is not NO_OP_KV_CONNECTOR or runner.ec_connector is not NO_OP_EC_CONNECTOR:
            return None
        if any(getattr(runner, name) is not None for name in UNUSED):
            return None
        slots = [runner.req_states.req_id_to_index[name] for name in names]
        tokens = list(output.num_scheduled_tokens.items())
        return cls(tokens, _lengths(output), list(names), slots, graph, batch, state)

    def comes_again(self, runner: Any, output: Any) -> bool:
        """Whether the scheduler wants the same of the same requests, and nothing else of the runner."""
        cached = output.scheduled_cached_reqs
        return not (
            output.scheduled_new_reqs
            or output.finished_req_ids
            or output.preempted_req_ids
            or output.scheduled_encoder_inputs
            or output.free_encoder_mm_hashes
            or output.ec_manager_metadata is not None
            or output.new_block_ids_to_zero
            or output.kv_cache_block_copies
            or cached.resumed_req_ids
            or cached.req_ids != self.names
            or list(output.num_scheduled_tokens.items()) != self.tokens
            or _lengths(output) != self.drafts
            or kept(runner) is not self.batch  # a dummy batch came between
        )

    def again(self, runner: Any, output: Any) -> None:
        """What `execute_model` does for such a step."""
        cached = output.scheduled_cached_reqs
        runner.req_states.num_computed_tokens_np[self.slots] = cached.num_computed_tokens
        append_blocks(runner, self.slots, cached.new_block_ids)
        batch = next_batch(runner, self.batch, output.has_structured_output_requests)
        runner.model_state.batch = batch
        found = runner.cudagraph_manager.run_fullgraph(self.graph)
        hidden_states, taps = found if runner.use_aux_hidden_state_outputs else (found, None)
        runner.execute_model_state = self.state._replace(
            input_batch=batch,
            hidden_states=hidden_states,
            aux_hidden_states=taps,
            finished_req_ids=output.finished_req_ids,
            num_spec_tokens_to_schedule=output.num_spec_tokens_to_schedule,
        )


def _lengths(output: Any) -> list[tuple[str, int]]:
    """How many drafts each request was given."""
    return [(name, len(tokens)) for name, tokens in output.scheduled_spec_decode_tokens.items()]


def steps_like_the_last() -> None:
    """Before and behind a graph's replay the V2 runner does in every step what any model's step may need: it sorts the
    batch, looks for a graph, makes its inputs, the slots by layer and the model's arguments, asks LoRA, connectors and
    expert balancing. A step of the same requests with as many tokens, in which none comes or goes, takes all of that
    from the one before: here it is a launch for its inputs and the replay.

    Unnecessary once the runner's own part of such a step is as short.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def make(stock: Any) -> Any:
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **of_dummies: Any) -> Any:
            last = self.__dict__.pop(_LAST, None)
            if last is not None and not of_dummies and last.comes_again(self, scheduler_output):
                last.again(self, scheduler_output)
                self.__dict__[_LAST] = last
                return None
            found = stock(self, scheduler_output, *args, **of_dummies)
            if found is None and not of_dummies and cross_kv_before_decoder(self):
                self.__dict__[_LAST] = LastStep.of(self, scheduler_output)
            return found

        return execute_model

    replace(GPUModelRunner, "execute_model", EXECUTE_MODEL, make)
