"""The V1 runner's proposer for our drafts: vLLM's DFlash proposer, whole blocks at every K, and DSpark's sampling.

vLLM's proposer lays out a block of K slots; here the block is the trained one, of which the first K are sampled. vLLM
0.32 has a DSpark speculator on the V2 runner only; on V1 (the CPU) DSpark runs through DFlash's parallel pass and
samples here. Unnecessary once vLLM's V1 runner, or V2 on the CPU, drives DSpark and knows a block from K.
"""

from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.dflash import DFlashProposer

from plugin.drafts.dspark import T5Gemma2DSparkDraftModel
from plugin.drafts.families import FAMILIES


class BlockProposer(DFlashProposer):
    """DFlash, DFlare: vLLM's own way. DSpark: the same pass, sampled slot by slot."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.draft_model_config.hf_config
        ours = FAMILIES["dspark"].architecture in (config.architectures or [])
        self.sample_from_anchor = ours and bool(config.sample_from_anchor)
        self.block = self.num_speculative_tokens
        self._anchors: torch.Tensor | None = None

    @torch.inference_mode()
    def propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        common_attn_metadata: CommonAttentionMetadata,
        sampling_metadata: Any,
        mm_embed_inputs: Any = None,
        num_rejected_tokens_gpu: torch.Tensor | None = None,
        slot_mappings: Any = None,
    ) -> torch.Tensor:
        """Draft tokens `[num_requests, K]`; see SpecDecodeBaseProposer.

        K = 0 leaves out the pass over the block, but not the context that the verified tokens are to later blocks.
        """
        if num_speculative_tokens > 0:
            return super().propose(
                num_speculative_tokens, target_token_ids, target_positions, target_hidden_states, next_token_ids,
                token_indices_to_sample, common_attn_metadata, sampling_metadata, mm_embed_inputs,
                num_rejected_tokens_gpu, slot_mappings,
            )  # fmt: skip
        self.num_speculative_tokens, self._last_draft_probs = 0, None
        num_tokens, _, _ = self.set_inputs_first_pass(
            target_token_ids,
            next_token_ids,
            target_positions,
            self.model.combine_hidden_states(target_hidden_states),
            token_indices_to_sample,
            common_attn_metadata,
            num_rejected_tokens_gpu,
        )
        self.build_model_inputs_first_pass(num_tokens, num_tokens, None)
        return next_token_ids.new_empty(next_token_ids.shape[0], 0, dtype=torch.int64)

    def set_inputs_first_pass(
        self, target_token_ids: torch.Tensor, next_token_ids: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[int, torch.Tensor, CommonAttentionMetadata]:
        """Lay out the trained block, of which K slots are then sampled; see DFlashProposer.

        With DSpark's `sample_from_anchor` the block has one slot less and every slot predicts the token after its own
        position, the anchor's included.
        """
        self._anchors = next_token_ids
        k = self.num_speculative_tokens
        self.num_speculative_tokens = self.block - int(self.sample_from_anchor)
        try:
            num_tokens, predicting, metadata = super().set_inputs_first_pass(
                target_token_ids, next_token_ids, *args, **kwargs
            )
        finally:
            self.num_speculative_tokens = k
        if self.sample_from_anchor or isinstance(self.model, T5Gemma2DSparkDraftModel):
            # From the anchor's slot on, which a Markov head reads in any case.
            predicting = torch.arange(num_tokens, dtype=torch.int32, device=self.device)
            k += 1 - int(self.sample_from_anchor)
        slots = predicting.view(next_token_ids.shape[0], -1)
        return num_tokens, slots[:, :k].flatten(), metadata

    def _sample_draft_tokens(
        self, hidden_states: torch.Tensor, sampling_metadata: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`[num_requests * K, hidden_size]`, request by request -> draft tokens of that order, and their probabilities.

        DSpark's chain is greedy at every temperature: any proposal that does not look at the sampled token keeps the
        verifier's distribution, and None tells the rejection sampler that the proposal is deterministic.
        """
        model = self.model
        if not isinstance(model, T5Gemma2DSparkDraftModel):
            return super()._sample_draft_tokens(hidden_states, sampling_metadata)
        assert self._anchors is not None
        hidden = hidden_states.view(self._anchors.shape[0], -1, hidden_states.shape[-1])
        first = 0 if self.sample_from_anchor else 1
        tokens = model.sample_block(
            hidden[:, first:],
            hidden[:, 0] if first else None,
            self._anchors.long(),
            lambda logits, bias, step: model.pick(logits, bias),
        )
        return tokens.flatten(), None
