"""What the three families share on vLLM: Qwen3-style layers over context keys made from the verifier's tapped states.

vLLM's own DFlash classes do most of it (and its V1 proposer insists on subclasses of them). The mathematics: a context
state `c(j)` for every accepted decoder position j gives each layer `K = rope_j(k_norm(W_k c))`, `V = W_v c`, stored in
the draft's pages; the block `[anchor, mask x K]` attends to all of them and, in both directions, to itself.
"""

from collections.abc import Iterable

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM, DFlashQwen3Model
from vllm.platforms import current_platform

from plugin.drafts.block_attention import attend_in_blocks
from plugin.drafts.checkpoint import read_draft
from plugin.drafts.location import download, locate


def normalize_context_k(all_k: torch.Tensor, weights: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm of each layer's context keys with that layer's own weight.

    Args:
        all_k: `[num_layers, num_tokens, num_kv_heads, head_dim]`.
        weights: `[num_layers, head_dim]`.
        eps: added to the mean square.
    """
    x = all_k.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * weights[:, None, None].float()).to(all_k.dtype)


class DraftBackbone(DFlashQwen3Model):
    """vLLM's DFlash backbone with one of its CPU kernels replaced, and on CUDA with attention of its own.

    `ops.rms_norm` of the CPU build ignores all rows but the first of a `[num_layers, head_dim]` weight, so that every
    layer's keys would be normed by layer 0's weight: wrong drafts, never wrong output. The grouped kernel of the CUDA
    build is right and stays. Unnecessary once the CPU op honours, or refuses, a two-dimensional weight.
    """

    def __init__(self, *, vllm_config: VllmConfig, start_layer_id: int = 0, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, start_layer_id=start_layer_id, prefix=prefix)
        if current_platform.is_cuda():
            for layer in self.layers:
                attend_in_blocks(layer.self_attn)

    def _normalize_context_k(self, all_k: torch.Tensor) -> torch.Tensor:
        if current_platform.is_cpu():
            return normalize_context_k(all_k, self._k_norm_weights, self._rms_norm_eps)
        return super()._normalize_context_k(all_k)


class DraftModel(DFlashQwen3ForCausalLM):
    """A draft as vLLM drives it; subclasses name their backbone in `model_cls`."""

    model_cls = DraftBackbone

    def compute_draft_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`[num_rows, hidden_size]` -> logits over the draft's own vocabulary, `[num_rows, draft_vocab_size]`."""
        logits: torch.Tensor = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def map_draft_to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Draft ids to verifier ids, any shape: `i + d2t[i]`, or the ids themselves for a full vocabulary."""
        if self.draft_id_to_target_id is None:
            return draft_ids
        return draft_ids + self.draft_id_to_target_id[draft_ids]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load a checkpoint in Speculators naming.

        vLLM leaves a tensor that the file lacks as it was initialised, which costs acceptance and nothing else; so the
        file's header is checked against its config first. With the full vocabulary `d2t` maps every id to itself.

        Raises:
            CheckpointError: tensors that are absent, unexpected or of another shape, or a `d2t` that cannot be.
        """
        read_draft(download(locate(self.draft_model_config.model)).path)
        full_vocabulary = self.draft_id_to_target_id is None
        super().load_weights((n, w) for n, w in weights if not (full_vocabulary and n == "d2t"))
