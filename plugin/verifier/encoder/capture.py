"""Whether the encoder is captured as CUDA graphs, and at which sizes; `graphs.py` is how, for passes in parts
`pass_graphs.py`, and from its states to the cross pages `plugin.verifier.cross_graphs`."""

from dataclasses import dataclass
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


PART_ROWS = 2048
"""Of a stage of a captured pass in parts: a layer takes a GPU a fifth of a millisecond for so many, or with full
attention to 8192 tokens a third of one (arithmetic: `work.py`)."""

MOST_PARTED = 32_768
"""Prompt tokens of a captured pass in parts: its buffers take 13 KB for each at the 1B shape. What is longer runs
without graphs."""


@dataclass(frozen=True, slots=True)
class PassSizes:
    """Prompts whose passes are captured, and in which parts.

    Attributes:
        whole: prompt tokens of passes whose stages are captured whole, ascending.
        parted: most tokens of longer prompts, whose stages are captured in parts of `PART_ROWS`; 0: none.
    """

    whole: tuple[int, ...] = ()
    parted: int = 0

    def part(self, length: int) -> int | None:
        """The tokens that each of a stage's parts computes for a prompt; None where its pass is not captured."""
        size = next((size for size in self.whole if size >= length), None)
        return PART_ROWS if size is None and length <= self.parted else size


NOT_CAPTURED = PassSizes()


def pass_graph_sizes(vllm_config: "VllmConfig") -> PassSizes:
    """Of the engine: beyond what a step beside running requests encodes at once, the sizes of the captured encoder, and
    in parts up to the longest prompt. None where the encoder is not captured, or no prompt is parted.
    """
    compilation, model = vllm_config.compilation_config, vllm_config.model_config
    step_tokens = vllm_config.ec_manager_config.manager_config.get("busy_step_tokens")
    if not step_tokens or not compilation.cudagraph_mm_encoder or model.enforce_eager:
        return NOT_CAPTURED
    whole = tuple(size for size in sorted(compilation.encoder_cudagraph_token_budgets) if size > step_tokens)
    longest = min(model.hf_config.max_source_positions, MOST_PARTED)
    # A short prompt would pay for a whole part.
    parted = whole and whole[-1] >= PART_ROWS and longest > whole[-1]
    return PassSizes(whole, -(-longest // PART_ROWS) * PART_ROWS if parted else 0)
