"""Hooks into the V2 model runner, which serves on CUDA."""

import sys
from typing import Any

from plugin.vllm_hooks.hook import replace


def compiled_decoder_beside_encoder_inputs() -> None:
    """The V2 runner runs the decoder of an encoder-decoder model eagerly in every step that admits a request, since the
    encoder's outputs arrive in the decoder's forward. Ours are in the pages by then (`plugin.verifier.model_state`), so
    the step may run the compiled decoder (not its graphs, which vLLM keeps for steps without prefills). Called when
    that state is made, in the worker.

    Unnecessary once the runner asks the model state whether such a step has to be eager.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from plugin.verifier.model_state import T5Gemma2ModelState

    def make(stock: Any) -> Any:
        def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(self.model_state, T5Gemma2ModelState):
                return stock(self, *args, **kwargs)
            self.is_encoder_decoder = False
            try:
                return stock(self, *args, **kwargs)
            finally:
                self.is_encoder_decoder = True

        return execute_model

    parameters = (
        "self",
        "scheduler_output",
        "intermediate_tensors",
        "dummy_run",
        "skip_attn_for_dummy_run",
        "is_profile",
        "context_len",
        "valid_dummy_state_slots",
        "randomize_inputs",
    )
    replace(GPUModelRunner, "execute_model", parameters, make)


def dspark_speculator() -> None:
    """The V2 runner picks its speculator by method; our DSpark runs as "dflash" like the others and needs vLLM's DSpark
    speculator, with our heads.

    Unnecessary once vLLM picks DSpark's speculator by the draft's architecture.
    """
    from vllm.v1.worker.gpu import spec_decode

    from plugin.drafts.families import FAMILIES

    def make(stock: Any) -> Any:
        def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
            draft = vllm_config.speculative_config.draft_model_config
            if draft is None or FAMILIES["dspark"].architecture not in draft.architectures:
                return stock(vllm_config, device, req_states)
            from plugin.drafts.v2_speculator import MarkovSpeculator

            return MarkovSpeculator(vllm_config, device)

        return init_speculator

    replace(spec_decode, "init_speculator", ("vllm_config", "device", "req_states"), make)
    if runner := sys.modules.get("vllm.v1.worker.gpu.model_runner"):
        runner.init_speculator = spec_decode.init_speculator  # type: ignore[attr-defined]
