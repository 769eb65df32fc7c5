"""What the three families share on vLLM: Qwen3-style layers over context keys made from the verifier's tapped states.

vLLM's own DFlash classes do most of it (and its V1 proposer insists on subclasses of them). The mathematics: a context
state `c(j)` for every accepted decoder position j gives each layer `K = rope_j(k_norm(W_k c))`, `V = W_v c`, stored in
the draft's pages; the block `[anchor, mask x K]` attends to all of them and, in both directions, to itself.
"""

from collections.abc import Iterable
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_dflash import (
    DFlashQwen3DecoderLayer,
    DFlashQwen3ForCausalLM,
    DFlashQwen3Model,
)
from vllm.platforms import current_platform

from plugin.checked_weights import checked
from plugin.drafts.block_attention import attend_in_blocks, block_attention
from plugin.drafts.checkpoint import read_draft
from plugin.drafts.location import download, locate
from plugin.drafts.safetensors_header import loaded_files
from plugin.drafts.tensors import never_zero
from plugin.projection import few_tokens
from plugin.projection.residual_norm import ResidualNorm


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


def shared_slots(slots: torch.Tensor | list[torch.Tensor | None] | None) -> torch.Tensor | None:
    """The slots `[num_tokens]` of all layers, given once or for each; None where layers differ or none are given."""
    if not isinstance(slots, (list, tuple)):
        return slots
    first = slots[0]
    if first is None or any(other is None or other.data_ptr() != first.data_ptr() for other in slots):
        return None
    return first


def replace_norms(module: torch.nn.Module, *names: str) -> None:
    """Put norms of our own in the place of vLLM's, whose weights are not loaded yet."""
    for name in names:
        norm = getattr(module, name)
        setattr(module, name, ResidualNorm(norm.hidden_size, eps=norm.variance_epsilon))


class DraftLayer(DFlashQwen3DecoderLayer):
    """vLLM's layer; on CUDA with attention of our own where it serves (`fused`), and with our own projections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fused = current_platform.is_cuda() and attend_in_blocks(self.self_attn)
        replace_norms(self, "input_layernorm", "post_attention_layernorm")

    def forward(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor | few_tokens.Deferred,
        residual: torch.Tensor | None,
    ) -> tuple[torch.Tensor | few_tokens.Deferred, torch.Tensor]:
        """vLLM's, where the layer before may leave its last projection to this one's first norm, and this one its own
        to the next norm: all of them, that behind the last layer too, are `ResidualNorm`s."""
        if not self.fused:
            return super().forward(positions, hidden_states, residual)
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = block_attention(self.self_attn, positions, hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        if few_tokens.plain(self.mlp.gate_up_proj):
            gated = few_tokens.gated(self.mlp.gate_up_proj, hidden_states, "silu")
            return few_tokens.deferred(self.mlp.down_proj, gated), residual
        return self.mlp(hidden_states), residual


class DraftBackbone(DFlashQwen3Model):
    """vLLM's DFlash backbone with one of its CPU kernels replaced, and on CUDA with attention of its own.

    `ops.rms_norm` of the CPU build ignores all rows but the first of a `[num_layers, head_dim]` weight, so that every
    layer's keys would be normed by layer 0's weight: wrong drafts, never wrong output. The grouped kernel of the CUDA
    build is right and stays. Unnecessary once the CPU op honours, or refuses, a two-dimensional weight.
    """

    decoder_layer_cls = DraftLayer

    def __init__(self, *, vllm_config: VllmConfig, start_layer_id: int = 0, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, start_layer_id=start_layer_id, prefix=prefix)
        replace_norms(self, "norm")
        self._fused = all(layer.fused for layer in self.layers)
        self._caches: tuple[int, torch.Tensor] | None = None

    def _norm_context(self, states: torch.Tensor, fusion: torch.Tensor | None = None) -> torch.Tensor:
        """The context `[num_layers, num_tokens, hidden_size]`, normed by the weight that all layers share.

        Args:
            states: `[num_tokens, T * hidden_size]`.
            fusion: `[num_layers, T]`, each layer's weights of the T taps; None for one context of all layers.
        """
        if states.is_cuda:
            from plugin.drafts.kernels import context_pages

            return context_pages.norm_context(states, fusion, self._hidden_norm_weight, self._rms_norm_eps)
        context = states[None]
        if fusion is not None:
            context = torch.einsum("dt,nth->dnh", fusion, states.unflatten(-1, (fusion.shape[1], -1)))
        rows = context.flatten(0, 1)
        normed = torch.empty_like(rows)
        ops.rms_norm(normed, rows, self._hidden_norm_weight, self._rms_norm_eps)
        return normed.view_as(context)

    def _context_kv(self, context_states: torch.Tensor) -> torch.Tensor:
        """`[num_tokens, hidden_size]` -> `[num_layers, num_tokens, 2, num_kv_heads, head_dim]`, keys not yet normed."""
        (normed,) = self._norm_context(context_states)
        if normed.is_cuda and self._fused_kv_bias is None:
            kv = few_tokens.linear_op(normed, self._fused_kv_weight)
        else:
            kv = torch.nn.functional.linear(normed, self._fused_kv_weight, self._fused_kv_bias)
        shape = (self._num_attn_layers, 2, self._num_kv_heads, self._head_dim)
        return kv.unflatten(-1, shape).transpose(0, 1)

    def _project_context_kv(
        self, context_states: torch.Tensor, num_ctx: int, num_layers: int, num_kv_heads: int, head_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each `[num_layers, num_tokens, num_kv_heads, head_dim]`, contiguous."""
        k, v = self._context_kv(context_states).unbind(2)
        return k.contiguous(), v.contiguous()

    def precompute_and_store_context_kv(
        self,
        context_states: torch.Tensor,
        context_positions: torch.Tensor,
        context_slot_mapping: torch.Tensor | list[torch.Tensor | None] | None = None,
    ) -> None:
        """vLLM's, in one launch behind the projection where all layers have our backend and share their slots."""
        slots = shared_slots(context_slot_mapping)
        if not self._fused or slots is None or not hasattr(self, "_num_attn_layers"):
            super().precompute_and_store_context_kv(context_states, context_positions, context_slot_mapping)
            return
        from plugin.drafts.kernels import context_pages

        caches = [layer.kv_cache for layer in self._attn_layers]
        # Made before the first capture, and anew should vLLM bind other caches.
        if self._caches is None or self._caches[0] != caches[0].data_ptr():
            self._caches = caches[0].data_ptr(), context_pages.addresses(caches)
        context_pages.store_context(
            self._context_kv(context_states), caches[0], self._caches[1], slots, context_positions,
            self._rope_cos_sin_cache, self._k_norm_weights, self._rms_norm_eps,
        )  # fmt: skip

    def _normalize_context_k(self, all_k: torch.Tensor) -> torch.Tensor:
        if current_platform.is_cpu():
            return normalize_context_k(all_k, self._k_norm_weights, self._rms_norm_eps)
        return super()._normalize_context_k(all_k)


class DraftModel(DFlashQwen3ForCausalLM):
    """A draft as vLLM drives it; subclasses name their backbone in `model_cls`."""

    model_cls = DraftBackbone

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.allow_patterns_overrides = loaded_files(self.draft_model_config.model)
        # vLLM's DFlash loader gives a draft without weights of its own (dummy ones) the verifier's head, whatever its
        # size: eight times the rows of a reduced vocabulary, read in every draft. Its DSpark loader compares the sizes;
        # unnecessary once DFlash's does.
        self.has_own_lm_head = self.draft_id_to_target_id is not None

    def project_taps(self, taps: torch.Tensor, out: torch.Tensor) -> None:
        """`combine_hidden_states` of `taps` `[num_tokens, T * hidden_size]` into `out` `[num_tokens, hidden_size]`.

        A plain product needs no copy.
        """
        if few_tokens.plain(self.model.fc):
            few_tokens.linear_into(taps, self.model.fc.weight, out)
        else:
            out[:] = self.combine_hidden_states(taps)

    def compute_draft_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`[num_rows, hidden_size]` -> logits over the draft's own vocabulary, `[num_rows, draft_vocab_size]`."""
        logits: torch.Tensor = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def map_draft_to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Draft ids to verifier ids, any shape: `i + d2t[i]`, or the ids themselves for a full vocabulary."""
        if self.draft_id_to_target_id is None:
            return draft_ids
        return draft_ids + self.draft_id_to_target_id[draft_ids]

    def pick(self, logits: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The verifier ids `[num_rows]` of the largest of `logits + bias`, each `[num_rows, draft_vocab_size]`."""
        if logits.is_cuda and logits.stride(-1) == 1:
            from plugin.drafts.kernels import triton_pick

            return triton_pick.pick(logits, bias, self.draft_id_to_target_id)
        return self.map_draft_to_target((logits if bias is None else logits + bias).argmax(dim=-1))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load a checkpoint in Speculators naming.

        vLLM leaves a tensor that the file lacks as it was initialised, which costs acceptance and nothing else; so the
        file's header is checked against its config first. With the full vocabulary `d2t` maps every id to itself.

        Raises:
            CheckpointError: tensors that are absent, unexpected or of another shape, a `d2t` that cannot be, or values
                that are not finite or all zero.
        """
        read_draft(download(locate(self.draft_model_config.model)).path)
        full_vocabulary = self.draft_id_to_target_id is None
        looked_at = checked(weights, next(self.parameters()).device, lambda name, _: never_zero(name))
        super().load_weights((n, w) for n, w in looked_at if not (full_vocabulary and n == "d2t"))

    def _read_mask_embedding(self) -> None:
        """vLLM puts a `mask_embedding.pt` beside the weights in the place of the mask token's row. These drafts are
        trained with the row of the table, and no such file of theirs is checked.
        """
