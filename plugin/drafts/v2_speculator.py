"""The V2 runner's speculators: vLLM's own, but for how they pick tokens, and without a pass that nobody asked for.

vLLM's DSpark knows the vanilla Markov head; gated and rnn heads also read the backbone's states. Greedy drafts of all
families are picked in the draft's own vocabulary: vLLM's DFlash scatters the logits over the verifier's first, eight
times as many. All of it is captured in the draft's CUDA graph like vLLM's.
"""

from typing import Any

import torch
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator
from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator


class ContextAlways:
    """Beside a speculator of vLLM's: without a draft asked for, a step writes its context K/V and drafts none.

    vLLM's runs its pass over the block at K = 0 too, a third of a step whose drafts nobody sees. Its draft graphs hold
    both, so that such a step is an eager one, as a profiling run is. Unnecessary once vLLM leaves the pass out.
    """

    _context_only = False

    def propose(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Draft tokens `[num_requests, block]`, of which the runner takes K; see DFlashSpeculator."""
        self._context_only = kwargs.get("num_speculative_tokens") == 0
        if self._context_only:
            kwargs["is_profile"] = True
        drafted: torch.Tensor = super().propose(*args, **kwargs)  # type: ignore[misc]
        return drafted

    def _generate_draft(self, *args: Any, **kwargs: Any) -> None:
        if not self._context_only:
            super()._generate_draft(*args, **kwargs)  # type: ignore[misc]


class BlockSpeculator(ContextAlways, DFlashSpeculator):
    """DFlash and DFlare."""

    def sample_draft(
        self,
        hidden_states: torch.Tensor,
        sample_src_positions: torch.Tensor,
        idx_mapping: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        draft_step: torch.Tensor,
        draft_logits: torch.Tensor | None,
        spec_step_idx: int = 0,
    ) -> torch.Tensor:
        """Draft tokens `[num_rows]` from normed backbone states `[num_rows, hidden_size]`."""
        model: Any = self.model
        if draft_logits is None and self.acceptance_estimator is None:
            picked: torch.Tensor = model.pick(model.compute_draft_logits(hidden_states))
            return picked
        sampled: torch.Tensor = super().sample_draft(
            hidden_states, sample_src_positions, idx_mapping, temperature, seeds, draft_step, draft_logits,
            spec_step_idx,
        )  # fmt: skip
        return sampled


class MarkovSpeculator(ContextAlways, DSparkSpeculator):
    """DSpark with any of the three Markov heads."""

    _speculator_name = "DSpark"

    def _sample_sequential(self, num_reqs: int, head_hidden: torch.Tensor) -> None:
        """Sample the block of each request left to right into `draft_tokens`.

        Args:
            num_reqs: requests in the batch, padding of a captured graph included.
            head_hidden: `[num_tokens, hidden_size]`, normed backbone states.
        """
        steps, model = self.num_speculative_steps, self.model
        rows = num_reqs * steps
        hidden = head_hidden[self.sample_indices[:rows]].view(num_reqs, steps, -1)
        slots = self.sample_idx_mapping[:rows].view(num_reqs, steps)
        positions = self.sample_pos[:rows].view(num_reqs, steps)
        first = self._anchor_idx[:num_reqs]
        anchors = self.input_buffers.input_ids[first].long()
        greedy = self.draft_logits is None and self.acceptance_estimator is None

        def pick(logits: torch.Tensor, bias: torch.Tensor, step: int) -> torch.Tensor:
            picked: torch.Tensor = model.pick(logits, bias)
            return picked

        def sample(logits: torch.Tensor, bias: torch.Tensor, step: int) -> torch.Tensor:
            return self._sample_logits(logits + bias, slots[:, step], positions[:, step], step)

        tokens = model.sample_block(
            hidden,
            None if self.sample_from_anchor else head_hidden[first],
            anchors,
            pick if greedy else sample,
        )
        self.draft_tokens[:num_reqs] = tokens
        if self.use_confidence_head:
            previous = torch.cat((anchors[:, None], tokens[:, :-1]), dim=1)
            embedded = model.model.markov_head.embed(previous)
            confidence = model.compute_confidence(hidden.flatten(0, 1), embedded.flatten(0, 1))
            self.draft_token_confidence_probs[:num_reqs] = confidence.view(num_reqs, steps)
