"""DSpark: the DFlash backbone, with the block sampled left to right under a Markov bias.

`logits_k = lm_head(norm(x_k)) + bias(token_{k-1}, ...)`, see `plugin.drafts.markov`. The confidence head is loaded and
kept for vLLM's adaptive verification (V2); nothing else reads it.
"""

from collections.abc import Callable
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_dspark import DSparkConfidenceHead
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix

from plugin.drafts.backbone import DraftBackbone, DraftModel
from plugin.drafts.markov import MarkovHead

Sample = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Logits and their bias, each `[num_requests, draft_vocab_size]`, and the step -> verifier ids `[num_requests]`."""


class DSparkBackbone(DraftBackbone):
    """Backbone with the Markov and confidence heads, under the names of the checkpoint."""

    hf_to_vllm_mapper = DraftBackbone.hf_to_vllm_mapper | WeightsMapper(
        orig_to_new_substr={"markov_head.gate_proj.": "markov_head.gate."}
    )

    def __init__(self, *, vllm_config: VllmConfig, start_layer_id: int = 0, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, start_layer_id=start_layer_id, prefix=prefix)
        config = self.config
        self.markov_head = MarkovHead(
            config.markov_head_type,
            config.vocab_size,
            config.draft_vocab_size,
            config.markov_rank,
            config.hidden_size,
        )
        self.confidence_head: DSparkConfidenceHead | None = None
        if config.enable_confidence_head:
            with_markov = config.confidence_head_with_markov
            self.confidence_head = DSparkConfidenceHead(
                config.hidden_size + (config.markov_rank if with_markov else 0),
                prefix=maybe_prefix(prefix, "confidence_head"),
                bias=True,
                with_markov=with_markov,
            )


class T5Gemma2DSparkDraftModel(DraftModel):
    """`DSparkDraftModel` checkpoints."""

    model_cls = DSparkBackbone

    def sample_block(
        self, hidden: torch.Tensor, anchor_hidden: torch.Tensor | None, anchors: torch.Tensor, sample: Sample
    ) -> torch.Tensor:
        """Draft a block left to right.

        Args:
            hidden: `[num_requests, K, hidden_size]`, normed backbone states of the predicting slots.
            anchor_hidden: `[num_requests, hidden_size]`, the anchor's own slot where it does not predict: training runs
                the head over the whole block, so an rnn head's state passes through it. None where it predicts.
            anchors: `[num_requests]`, the last accepted tokens.
            sample: picks the next tokens from logits and their bias.

        Returns:
            Draft tokens `[num_requests, K]` in the verifier's vocabulary.
        """
        head = self.model.markov_head
        base = self.compute_draft_logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
        previous, state = anchors, head.initial_state(hidden)
        if anchor_hidden is not None:
            state = head.next_state(head.embed(anchors), anchor_hidden, state)
        tokens = []
        for k in range(hidden.shape[1]):
            bias, state = head(head.embed(previous), hidden[:, k], state)
            previous = sample(base[:, k], bias, k)
            tokens.append(previous)
        return torch.stack(tokens, dim=1)

    def pick_block(self, hidden: torch.Tensor, anchors: torch.Tensor, out: torch.Tensor) -> bool:
        """`sample_block` with the largest logits' tokens into `out` `[num_requests, K]`, by programs of our own.

        Returns:
            Whether they serve: the vanilla head's 16-bit weights on CUDA, for few requests. If not, `out` is as it was.
        """
        head = self.model.markov_head
        if head.head_type != "vanilla" or not hidden.is_cuda:
            return False
        from plugin.drafts.kernels import triton_pick

        w1, w2 = head.markov_w1.weight, head.markov_w2.weight
        if not triton_pick.serves(hidden, w2):
            return False
        base = self.compute_draft_logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
        triton_pick.pick_block(base, anchors, w1, w2, self.draft_id_to_target_id, out)
        return True

    def compute_confidence(self, hidden: torch.Tensor, markov_embed: torch.Tensor) -> torch.Tensor:
        """Estimated acceptance of each slot, `[num_rows]`, from `[num_rows, hidden_size]` and `[num_rows, rank]`."""
        confidence: Any = self.model.confidence_head
        return torch.sigmoid(confidence(hidden, markov_embed))
