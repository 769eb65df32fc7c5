"""DFlare: DFlash with a context of its own for every draft layer.

    f_d(j) = sum_t softmax_t(layer_fusion_weights[d, t]) * a_t(j)        no projection per tap
    K_d = rope_j(k_norm_d(k_proj_target_d(hidden_norm f_d))),  V_d = v_proj_target_d(hidden_norm f_d)

Block tokens keep `k_proj`/`v_proj`; `k_norm` and `hidden_norm` are shared. vLLM carries one context vector a position,
so the taps travel concatenated (`hidden_size` of the hf config is T times the draft's own, `plugin.drafts.vllm_config`)
and are fused here, where the result goes into each layer's pages.
"""

import copy

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import WeightsMapper

from plugin.drafts.backbone import DraftBackbone, DraftModel


def with_own_width(vllm_config: VllmConfig) -> VllmConfig:
    """The same configuration with the draft's layers at their own width instead of the context's."""
    config, speculative = copy.copy(vllm_config), copy.copy(vllm_config.speculative_config)
    assert speculative is not None
    speculative.draft_model_config = copy.copy(speculative.draft_model_config)
    speculative.draft_model_config.hf_config = copy.copy(speculative.draft_model_config.hf_config)
    speculative.draft_model_config.hf_config.hidden_size = (
        speculative.draft_model_config.hf_config.draft_hidden_size
    )
    config.speculative_config = speculative
    return config


class DFlareBackbone(DraftBackbone):
    """Backbone with a fusion of the taps per layer."""

    # vLLM stacks every name with ".k_proj" or ".v_proj" in it into the block's qkv projection.
    hf_to_vllm_mapper = DraftBackbone.hf_to_vllm_mapper | WeightsMapper(
        orig_to_new_substr={".k_proj_target.": ".target_k_proj.", ".v_proj_target.": ".target_v_proj."}
    )

    def __init__(self, *, vllm_config: VllmConfig, start_layer_id: int = 0, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, start_layer_id=start_layer_id, prefix=prefix)
        del self.fc  # the taps are not projected
        self.num_taps = len(self.config.eagle_aux_hidden_state_layer_ids)
        self.layer_fusion_weights = nn.Parameter(
            torch.zeros(self.config.num_hidden_layers, self.num_taps), requires_grad=False
        )
        for layer in self.layers:
            attn = layer.self_attn
            attn.target_k_proj = nn.Linear(attn.hidden_size, attn.kv_size, bias=False)
            attn.target_v_proj = nn.Linear(attn.hidden_size, attn.kv_size, bias=False)

    def _build_context_kv_buffers(self, layers_attn: list[nn.Module], has_bias: bool) -> None:
        super()._build_context_kv_buffers(layers_attn, has_bias)
        self._fused_kv_weight = None  # the block's projections are not the context's
        # [num_layers, 2 * kv_size, hidden_size]
        self._context_kv_weight = torch.stack(
            [torch.cat((attn.target_k_proj.weight, attn.target_v_proj.weight)) for attn in layers_attn]
        )
        self._fusion = torch.softmax(self.layer_fusion_weights.float(), dim=-1).to(
            self._context_kv_weight.dtype
        )

    def _context_kv(self, context_states: torch.Tensor) -> torch.Tensor:
        """`[num_tokens, T * hidden_size]` -> `[num_layers, num_tokens, 2, num_kv_heads, head_dim]`."""
        normed = self._norm_context(context_states, self._fusion)
        kv = torch.bmm(normed, self._context_kv_weight.transpose(1, 2))
        return kv.unflatten(-1, (2, self._num_kv_heads, self._head_dim))


class T5Gemma2DFlareDraftModel(DraftModel):
    """`DFlareDraftModel` checkpoints."""

    model_cls = DFlareBackbone

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=with_own_width(vllm_config), prefix=prefix)

    def combine_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The taps `[num_tokens, T * hidden_size]` as they are; each layer fuses them for itself."""
        return hidden_states
