"""The V1 runner's proposer for our drafts: vLLM's DFlash proposer, and DSpark's left-to-right sampling on top.

vLLM 0.32 has a DSpark speculator on the V2 runner only; on V1 (the CPU) DSpark runs through DFlash's parallel pass and
samples here. Unnecessary once vLLM's V1 runner, or V2 on the CPU, drives DSpark.
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
        self._anchors: torch.Tensor | None = None

    def set_inputs_first_pass(
        self, target_token_ids: torch.Tensor, next_token_ids: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[int, torch.Tensor, CommonAttentionMetadata]:
        """Lay out the block; see DFlashProposer.

        With DSpark's `sample_from_anchor` the block has K slots instead of 1 + K and every slot predicts the token
        after its own position, the anchor's included.
        """
        self._anchors = next_token_ids
        lookahead = int(self.sample_from_anchor)
        self.num_speculative_tokens -= lookahead
        try:
            num_tokens, predicting, metadata = super().set_inputs_first_pass(
                target_token_ids, next_token_ids, *args, **kwargs
            )
        finally:
            self.num_speculative_tokens += lookahead
        if self.sample_from_anchor or isinstance(self.model, T5Gemma2DSparkDraftModel):
            # Every slot: a Markov head reads the anchor's, too.
            predicting = torch.arange(num_tokens, dtype=torch.int32, device=self.device)
        return num_tokens, predicting, metadata

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
