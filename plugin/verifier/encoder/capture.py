"""Whether the encoder is captured as CUDA graphs, and at which sizes; `graphs.py` is how, for passes in parts
`pass_graphs.py`, and from its states to the cross pages `plugin.verifier.cross_graphs`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ENCODER_GRAPH_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Tokens of the encoder's captured graphs, as far as a step can hold them. Beyond the largest it runs without one."""

ENCODER_GRAPH_PROMPTS = 32
"""Prompts of one such graph."""


def encoder_graph_sizes(max_tokens: int) -> list[int]:
    """The captured sizes for steps of up to `max_tokens` encoder tokens."""
    return [size for size in ENCODER_GRAPH_TOKENS if size <= max_tokens] or [max_tokens]


def capture_encoder(vllm_config: "VllmConfig") -> None:
    """Switch on the encoder's CUDA graphs where the engine has graphs at all, at our sizes unless the user set some."""
    from vllm.config.compilation import CUDAGraphMode
    from vllm.platforms import current_platform

    if not current_platform.is_cuda() or vllm_config.model_config.enforce_eager:
        return
    compilation, scheduler = vllm_config.compilation_config, vllm_config.scheduler_config
    if compilation.cudagraph_mode == CUDAGraphMode.NONE:
        return
    compilation.cudagraph_mm_encoder = True
    if not compilation.encoder_cudagraph_token_budgets:
        compilation.encoder_cudagraph_token_budgets = encoder_graph_sizes(scheduler.max_num_batched_tokens)
    if not compilation.encoder_cudagraph_max_vision_items_per_batch:
        compilation.encoder_cudagraph_max_vision_items_per_batch = min(
            ENCODER_GRAPH_PROMPTS, scheduler.max_num_seqs, *compilation.encoder_cudagraph_token_budgets
        )


def pass_graph_sizes(vllm_config: "VllmConfig") -> list[int]:
    """The sizes at which a pass in parts is captured, too: those beyond what a step beside running requests encodes at
    once. None where the encoder is not captured, or no prompt is parted.
    """
    compilation = vllm_config.compilation_config
    step_tokens = vllm_config.ec_manager_config.manager_config.get("busy_step_tokens")
    if not step_tokens or not compilation.cudagraph_mm_encoder or vllm_config.model_config.enforce_eager:
        return []
    return [size for size in sorted(compilation.encoder_cudagraph_token_budgets) if size > step_tokens]
