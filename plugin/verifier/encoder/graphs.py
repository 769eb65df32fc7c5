"""The encoder as CUDA graphs, through vLLM's own interface for encoders.

vLLM captures one graph for each number of tokens (`encoder_cudagraph_token_budgets`), packs the prompts of a step into
as few of them as it can, copies its inputs into the captured buffers and replays. A prompt is an item whose input and
output sizes are its tokens. Prompts beyond the largest budget run without a graph.

The captured sequences are the prompts, one more that holds all padding tokens, and empty ones: padded tokens are
attended among themselves, so that nothing uninitialised is ever read.
"""

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsEncoderCudaGraph
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.encoder_cudagraph_defs import (
    EncoderCudaGraphCaptureInputs,
    EncoderCudaGraphConfig,
    EncoderCudaGraphReplayBuffers,
    EncoderItemSpec,
)

from plugin.verifier.encoder.capture import encoder_graph_sizes
from plugin.verifier.encoder.passes import EncoderPass
from plugin.verifier.encoder.prompt_batch import PromptBatch
from plugin.verifier.encoder.prompt_graphs import PACKED, packed_size, views
from plugin.verifier.encoder.text_encoder import TextEncoder
from plugin.verifier.processing import MODALITY


def copy_tokens(buffer: torch.Tensor, tokens: torch.Tensor) -> None:
    """Ids or positions on the host, then zeros."""
    async_tensor_h2d(tokens, out=buffer[: tokens.shape[0]])
    buffer[tokens.shape[0] :].zero_()


def copy_cu_seqlens(buffer: torch.Tensor, cu_seqlens: torch.Tensor) -> None:
    """The prompts' bounds; then the padding's end, which is the buffer's last element, for all further sequences."""
    num_bounds = cu_seqlens.shape[0]
    async_tensor_h2d(cu_seqlens, out=buffer[:num_bounds])
    buffer[num_bounds:-1] = buffer[-1]


class EncoderGraphs(SupportsEncoderCudaGraph):
    """Mixed into the verifier. Names and arguments are vLLM's."""

    encoder: TextEncoder

    def get_encoder_cudagraph_config(self) -> EncoderCudaGraphConfig:
        return EncoderCudaGraphConfig(
            modalities=[MODALITY],
            buffer_keys=["ids", "positions", "cu_seqlens"],
            out_hidden_size=self.encoder.hidden_size,
            padding_logics={
                "ids": copy_tokens,
                "positions": copy_tokens,
                "cu_seqlens": copy_cu_seqlens,
            },
        )

    def get_input_modality(self, mm_kwargs: dict[str, Any]) -> str:
        return MODALITY

    def get_max_frames_per_video(self) -> int:
        return 0

    def get_encoder_cudagraph_budget_range(self, vllm_config: VllmConfig) -> tuple[int, int]:
        budgets = encoder_graph_sizes(vllm_config.scheduler_config.max_num_batched_tokens)
        return budgets[0], budgets[-1]

    def get_encoder_cudagraph_item_specs(self, mm_kwargs: dict[str, Any]) -> list[EncoderItemSpec]:
        return [EncoderItemSpec(prompt.shape[-1], prompt.shape[-1]) for prompt in mm_kwargs[MODALITY]]

    def select_encoder_cudagraph_items(self, mm_kwargs: dict[str, Any], indices: list[int]) -> dict[str, Any]:
        return {MODALITY: [mm_kwargs[MODALITY][i] for i in indices]}

    def prepare_encoder_cudagraph_capture_inputs(
        self,
        token_budget: int,
        max_batch_size: int,
        max_frames_per_batch: int,
        device: torch.device,
        dtype: torch.dtype,
        path: str = "default",
        axis_keys: tuple[Any, ...] | None = None,
    ) -> EncoderCudaGraphCaptureInputs:
        packed = torch.zeros(packed_size(token_budget, max_batch_size), dtype=torch.int64, device=device)
        ids, positions, cu_seqlens = views(packed, token_budget, max_batch_size, torch.int32)
        cu_seqlens[1:] = token_budget
        values = {"ids": ids, "positions": positions, "cu_seqlens": cu_seqlens, PACKED: packed}
        return EncoderCudaGraphCaptureInputs(values=values)

    def prepare_encoder_cudagraph_replay_buffers(
        self, mm_kwargs: dict[str, Any], max_batch_size: int, max_frames_per_batch: int, path: str = "default"
    ) -> EncoderCudaGraphReplayBuffers:
        batch = self._batch(mm_kwargs, torch.device("cpu"))
        return EncoderCudaGraphReplayBuffers(
            values={"ids": batch.ids, "positions": batch.positions, "cu_seqlens": batch.cu_seqlens}
        )

    def encoder_cudagraph_forward(
        self, inputs: dict[str, torch.Tensor], path: str = "default"
    ) -> torch.Tensor:
        ids = inputs["ids"]
        states: torch.Tensor = self.encoder(ids, inputs["positions"], inputs["cu_seqlens"], ids.shape[0])
        return states

    def encoder_eager_forward(self, mm_kwargs: dict[str, Any], path: str = "default") -> torch.Tensor:
        batch = self._batch(mm_kwargs, self.encoder.device)
        states: torch.Tensor = self.encoder(batch.ids, batch.positions, batch.cu_seqlens, max(batch.lengths))
        return states

    def postprocess_encoder_output(
        self,
        outputs: dict[str, torch.Tensor],
        indices: list[int],
        per_item_out_tokens: list[int],
        dest: dict[int, torch.Tensor] | list[torch.Tensor | None],
        clone: bool = False,
        batch_mm_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """One copy out of the graph's buffer for all of its prompts, where vLLM's own makes one for each."""
        lengths = [per_item_out_tokens[i] for i in indices]
        states = outputs["default"][: sum(lengths)]
        for i, prompt in zip(indices, (states.clone() if clone else states).split(lengths), strict=True):
            dest[i] = prompt

    def begin_encoder_pass(self, prompt: torch.Tensor) -> EncoderPass:
        """A pass over one prompt's token ids, `[length]`, of which nothing is done yet."""
        batch = self._batch({MODALITY: [prompt]}, self.encoder.device)
        return EncoderPass(self.encoder, batch.ids, batch.positions, batch.cu_seqlens, batch.lengths[0])

    def _batch(self, mm_kwargs: dict[str, Any], device: torch.device) -> PromptBatch:
        return PromptBatch.of([prompt.flatten() for prompt in mm_kwargs[MODALITY]], device)
