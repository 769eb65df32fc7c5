"""The drafts in plain PyTorch, as they are trained: backbone, per-family context, output heads.

Module names are the checkpoint's tensor names, so `state_dict()` is the file. RMSNorm is the plain one (weight times
the normalised input, weight initialised at 1), not Gemma's. The embedding is the verifier's raw table, unscaled.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from plugin.training.draft.anchors import Blocks, context_mask, own_mask
from plugin.training.draft.block_attention import block_attention
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.heads import BlockMarkovHead, ConfidenceHead

Masks = tuple[torch.Tensor, torch.Tensor | None]
"""Which context columns a slot sees, and which slots of its block."""


def rope_tables(positions: torch.Tensor, config: DraftConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [*positions.shape, head_dim], in neox halves; "linear" divides positions by its factor."""
    rope = config.rope_parameters
    factor = float(rope.get("factor", 1.0)) if rope["rope_type"] == "linear" else 1.0
    halves = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32)
    exponents = halves / config.head_dim
    angles = positions[..., None].float() * (1.0 / float(rope["rope_theta"]) ** exponents / factor)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(states: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """`states` [rows, length, heads, head_dim] turned by `tables` [rows, length, head_dim]."""
    cos, sin = (table[:, :, None, :].to(states.dtype) for table in tables)
    low, high = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-high, low], dim=-1) * sin


class RMSNorm(nn.RMSNorm):
    """The plain one, in the precision of what it is given, so that mixed precision stays mixed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width] to [..., width]."""
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class DraftAttention(nn.Module):
    """Block queries over context keys (from the verifier's states) and block keys.

    DFlare projects its context by `k_proj_target` and `v_proj_target`; the others share `k_proj` and `v_proj`.
    """

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        width, dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, width, bias=False)
        self.q_norm = RMSNorm(dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(dim, eps=config.rms_norm_eps)
        if config.family == "dflare":
            self.k_proj_target = nn.Linear(width, config.num_key_value_heads * dim, bias=False)
            self.v_proj_target = nn.Linear(width, config.num_key_value_heads * dim, bias=False)

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (-1, self.config.head_dim))

    def forward(
        self,
        states: torch.Tensor,
        context: torch.Tensor,
        block_rope: tuple[torch.Tensor, torch.Tensor],
        context_rope: tuple[torch.Tensor, torch.Tensor],
        masks: Masks,
    ) -> torch.Tensor:
        """`states` [R, N*B, hidden] of N blocks, `context` [R, length, hidden].

        Ropes are those of the slots and of the context's columns, `masks` as `block_attention` takes them.
        """
        own = self.config.family == "dflare"
        k_context = (self.k_proj_target if own else self.k_proj)(context)
        v_context = (self.v_proj_target if own else self.v_proj)(context)
        query = rotate(self.q_norm(self._heads(self.q_proj(states))), block_rope)
        key_block = rotate(self.k_norm(self._heads(self.k_proj(states))), block_rope)
        key_context = rotate(self.k_norm(self._heads(k_context)), context_rope)
        blocks = (masks[0].shape[1], -1)
        attended = block_attention(
            query.unflatten(1, blocks), key_context, self._heads(v_context), key_block.unflatten(1, blocks),
            self._heads(self.v_proj(states)).unflatten(1, blocks), *masks,
        )  # fmt: skip
        return self.o_proj(attended.flatten(1, 2).flatten(2))


class DraftMLP(nn.Module):
    """SiLU-gated feed-forward."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., hidden] to [..., hidden]."""
        return self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))


class DraftLayer(nn.Module):
    """Pre-norm layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = DraftAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = DraftMLP(config)

    def forward(
        self,
        states: torch.Tensor,
        context: torch.Tensor,
        block_rope: tuple[torch.Tensor, torch.Tensor],
        context_rope: tuple[torch.Tensor, torch.Tensor],
        masks: Masks,
    ) -> torch.Tensor:
        """As `DraftAttention.forward`."""
        normed = self.input_layernorm(states)
        states = states + self.self_attn(normed, context, block_rope, context_rope, masks)
        return states + self.mlp(self.post_attention_layernorm(states))


class TrainableDraft(nn.Module):
    """A DFlash, DSpark or DFlare draft.

    `table` [vocab_size, hidden] is the verifier's raw embedding; it fills `embed_tokens` and, by `t2d`, `lm_head`, and
    both stay frozen.
    """

    t2d: torch.Tensor
    d2t: torch.Tensor

    def __init__(
        self, config: DraftConfig, table: torch.Tensor, t2d: torch.Tensor, d2t: torch.Tensor
    ) -> None:
        super().__init__()
        if tuple(table.shape) != (config.vocab_size, config.hidden_size):
            raise ValueError(
                f"embed_tokens.weight: {list(table.shape)}, not {[config.vocab_size, config.hidden_size]}"
            )
        if int(t2d.sum()) != config.draft_vocab_size or len(d2t) != config.draft_vocab_size:
            raise ValueError(
                f"t2d: {int(t2d.sum())} tokens where draft_vocab_size is {config.draft_vocab_size}"
            )
        self.config = config
        self.gradient_checkpointing = False
        self.register_buffer("t2d", t2d)
        self.register_buffer("d2t", d2t)
        self.embed_tokens = nn.Embedding.from_pretrained(table.clone(), freeze=True)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.lm_head.weight = nn.Parameter(table[t2d].clone(), requires_grad=False)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.family == "dflare":
            self.layer_fusion_weights = nn.Parameter(
                _fusion_start(config.num_hidden_layers, config.num_aux_layers)
            )
        else:
            self.fc = nn.Linear(config.num_aux_layers * config.hidden_size, config.hidden_size, bias=False)
        self.markov_head = BlockMarkovHead(config) if config.family == "dspark" else None
        confidence = config.family == "dspark" and config.enable_confidence_head
        self.confidence_head = ConfidenceHead(config) if confidence else None
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.lm_head:
                nn.init.normal_(module.weight, std=module.in_features**-0.5)

    def contexts(self, aux: torch.Tensor) -> list[torch.Tensor]:
        """`aux` [rows, length, T, hidden] as one context [rows, length, hidden] for every layer."""
        if self.config.family == "dflare":
            shares = self.layer_fusion_weights.softmax(dim=-1)
            # All layers at once: autocast casts `aux` at every call.
            mixed = torch.einsum("lt,...th->l...h", shares, aux)
            return [self.hidden_norm(context) for context in mixed]
        return [self.hidden_norm(self.fc(aux.flatten(-2)))] * self.config.num_hidden_layers

    def forward(
        self, aux: torch.Tensor, documents: torch.Tensor, positions: torch.Tensor, blocks: Blocks
    ) -> torch.Tensor:
        """Final normed states of every slot, [R, N, B, hidden].

        `aux` [R, length, T, hidden]; `documents` and `positions` [R, length] describe the context's columns.
        """
        masks = self._masks(documents, positions, blocks)
        block_rope = rope_tables(blocks.positions.flatten(1), self.config)
        context_rope = rope_tables(positions, self.config)
        states = self.embed_tokens(blocks.inputs.flatten(1))
        for layer, context, seen in zip(self.layers, self.contexts(aux), masks, strict=True):
            inputs = (states, context, block_rope, context_rope, seen)
            if self.gradient_checkpointing and self.training:
                states = checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                states = layer(*inputs)
        return self.norm(states).view(*blocks.inputs.shape, -1)

    def _masks(self, documents: torch.Tensor, positions: torch.Tensor, blocks: Blocks) -> list[Masks]:
        """Of every layer."""
        config = self.config
        full = sliding = (context_mask(blocks, documents, positions), own_mask(blocks))
        if config.sliding_layers:
            window = config.sliding_window
            sliding = (
                context_mask(blocks, documents, positions, window),
                own_mask(blocks, window, causal=not config.sliding_window_non_causal),
            )
        return [sliding if i in config.sliding_layers else full for i in range(config.num_hidden_layers)]

    def draft_logits(self, states: torch.Tensor, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [R, N, B, draft vocabulary] and, where there is such a head, confidence logits [R, N, B].

        Markov heads see the true previous token of every slot. Up to a block's first wrong slot that is also the
        token that sequential sampling has drafted, so leading matches are those of serving.
        """
        logits = self.lm_head(states)
        if self.markov_head is None:
            return logits, None
        embedded = self.markov_head.embed(blocks.previous())
        logits = logits + self.markov_head.block_bias(states, embedded)
        confidence = None if self.confidence_head is None else self.confidence_head(states, embedded)
        return logits, confidence

    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Draft vocabulary ids as target vocabulary ids, any shape."""
        return draft_ids + self.d2t[draft_ids]


def _fusion_start(layers: int, states: int) -> torch.Tensor:
    """DFlare's first fusion weights [layers, states]: each layer leans on the state at its own relative depth."""
    start = torch.zeros(layers, states)
    for layer in range(layers):
        start[layer, min(states - 1, layer * states // layers)] = 2.0
    return start
