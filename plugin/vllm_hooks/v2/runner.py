"""Hooks into the V2 model runner, which serves on CUDA."""

import sys
from typing import Any

from plugin.vllm_hooks.hook import HookError, replace

EXECUTE_MODEL = (
    "self", "scheduler_output", "intermediate_tensors", "dummy_run", "skip_attn_for_dummy_run", "is_profile",
    "context_len", "valid_dummy_state_slots", "randomize_inputs",
)  # fmt: skip
"""Parameters of the runner's `execute_model`, which two hooks replace."""


def cross_kv_before_decoder(runner: Any) -> bool:
    """Whether the runner's model state writes the cross K/V before the decoder runs."""
    return getattr(runner.model_state, "cross_kv_before_decoder", False)


def compiled_decoder_beside_encoder_inputs() -> None:
    """The V2 runner runs the decoder of an encoder-decoder model eagerly in every step that admits a request, since the
    encoder's outputs arrive in the decoder's forward. A model state with `cross_kv_before_decoder` has them in the
    pages by then, so the step may run the compiled decoder and its graphs.

    Unnecessary once the runner asks the model state whether such a step has to be eager.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def make(stock: Any) -> Any:
        def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not cross_kv_before_decoder(self):
                return stock(self, *args, **kwargs)
            self.is_encoder_decoder = False
            try:
                return stock(self, *args, **kwargs)
            finally:
                self.is_encoder_decoder = True

        return execute_model

    replace(GPUModelRunner, "execute_model", EXECUTE_MODEL, make)


def encoder_passes_in_parts() -> None:
    """The V2 runner runs an encoder in the step that admits a request, in one go, once the host has prepared all else.
    Here it does a long prompt's pass in the parts that the scheduler's `PromptCacheManager` bids it, before the request
    is there; and a step begins with the encoder, so that the GPU has work meanwhile.

    Unnecessary once vLLM's runners split encoder work over steps, and launch it first.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def make(stock: Any) -> Any:
        def free_states(self: Any, scheduler_output: Any) -> None:
            stock(self, scheduler_output)
            if cross_kv_before_decoder(self):
                self.model_state.encoder_states.advance(scheduler_output.ec_manager_metadata)
                self.model_state.begin_prompts(
                    scheduler_output.scheduled_new_reqs, scheduler_output.scheduled_encoder_inputs
                )

        return free_states

    replace(GPUModelRunner, "free_states", ("self", "scheduler_output"), make)


def first_token_as_decode() -> None:
    """The V2 runner lets a prefill of one token replay a decode graph only where tokens were computed before it. The
    decoder's start token has none, but with `cross_kv_before_decoder` all that it reads is in the pages when the graph
    replays: nothing sets it apart from a running request.

    Unnecessary once the runner asks the model state which prefills run as decodes.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.utils import get_uniform_decode_token_count

    def make(stock: Any) -> Any:
        def gather_batch_req_state(self: Any, scheduler_output: Any, dummy_run: bool) -> Any:
            state, uniform = stock(self, scheduler_output, dummy_run)
            manager = self.cudagraph_manager
            if manager is not None:
                manager.longest_query = None
            if state is None or not state.has_prefill or not cross_kv_before_decoder(self):
                return state, uniform
            new_tokens = state.num_scheduled_tokens
            if state.num_draft_tokens_np is not None:
                new_tokens = new_tokens - state.num_draft_tokens_np
            as_decode = state.is_prefilling_np & (new_tokens == 1)
            eligible = bool((as_decode | ~state.is_prefilling_np).all())
            state = state._replace(prefill_runs_as_decode_np=as_decode, decode_graph_eligible=eligible)
            longest = max(scheduler_output.num_scheduled_tokens.values())
            if manager is not None and eligible:
                manager.longest_query = longest
            return state, get_uniform_decode_token_count(
                len(state.req_ids), state.num_tokens, longest, eligible
            )

        return gather_batch_req_state

    replace(GPUModelRunner, "gather_batch_req_state", ("self", "scheduler_output", "dummy_run"), make)


def mixed_decode_graphs() -> None:
    """Beside running requests with K drafts a joining one has one token. The V2 runner captures graphs for such
    mixtures for adaptive verification alone, and gives no bound of the query length to a step with prefills. Ours
    captures some beside the uniform ones and passes on the bound that `first_token_as_decode` found.

    Unnecessary once the runner captures both kinds and bounds steps whose prefills run as decodes.
    """
    from vllm.v1.worker.gpu import model_runner

    from plugin.verifier.decode_graphs import DecodeGraphManager

    def make(stock: Any) -> Any:
        def dispatch_cg_and_sync_dp(
            cudagraph_manager: Any, *args: Any, max_query_len: int | None = None, **kwargs: Any
        ) -> Any:
            if max_query_len is None:
                max_query_len = getattr(cudagraph_manager, "longest_query", None)
            return stock(cudagraph_manager, *args, max_query_len=max_query_len, **kwargs)

        return dispatch_cg_and_sync_dp

    if not hasattr(model_runner, "ModelCudaGraphManager"):
        raise HookError(
            "vllm.v1.worker.gpu.model_runner has no ModelCudaGraphManager any more: see plugin/vllm_hooks"
        )
    model_runner.ModelCudaGraphManager = DecodeGraphManager
    parameters = (
        "cudagraph_manager",
        "num_reqs",
        "num_tokens",
        "uniform_token_count",
        "dp_size",
        "dp_rank",
        "max_query_len",
        "need_eager",
        "num_active_loras",
        "parallel_config",
        "allow_ubatching",
        "uniform_decode",
        "dp_sync_state",
    )
    replace(model_runner, "dispatch_cg_and_sync_dp", parameters, make)


def block_speculators() -> None:
    """The V2 runner picks its speculator by method; our DSpark runs as "dflash" like the others and needs vLLM's DSpark
    speculator, with our heads; the others pick in their own vocabulary; and all draft in one graph, which writes into
    the runner's state.

    Unnecessary once vLLM picks DSpark's speculator by the draft's architecture, takes DFlash's argmax before the logits
    are scattered, and captures all of a draft.
    """
    from vllm.v1.worker.gpu import spec_decode

    from plugin.drafts.families import FAMILIES

    def make(stock: Any) -> Any:
        def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
            draft = vllm_config.speculative_config.draft_model_config
            if draft is None or not {f.architecture for f in FAMILIES.values()} & set(draft.architectures):
                return stock(vllm_config, device, req_states)
            from plugin.drafts.v2_speculator import BlockSpeculator, MarkovSpeculator

            if FAMILIES["dspark"].architecture in draft.architectures:
                return MarkovSpeculator(vllm_config, device, req_states)
            return BlockSpeculator(vllm_config, device, req_states)

        return init_speculator

    replace(spec_decode, "init_speculator", ("vllm_config", "device", "req_states"), make)
    if runner := sys.modules.get("vllm.v1.worker.gpu.model_runner"):
        runner.init_speculator = spec_decode.init_speculator  # type: ignore[attr-defined]


def taps_where_the_draft_reads_them() -> None:
    """The V2 runner's graphs copy the taps into buffers of their manager's, one each, and the draft's inputs are copied
    out of those in every step. The manager makes the buffers when it captures its first graph, unless it has some: here
    it has the draft's own.

    Unnecessary once the draft's graphs read the manager's buffers.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def make(stock: Any) -> Any:
        def capture_model(self: Any, *, profile_only: bool = False) -> Any:
            taps = getattr(self.speculator, "taps", None)
            if taps is not None and cross_kv_before_decoder(self):
                self.cudagraph_manager.aux_hidden_states = [taps]
            return stock(self, profile_only=profile_only)

        return capture_model

    replace(GPUModelRunner, "capture_model", ("self", "profile_only"), make)
