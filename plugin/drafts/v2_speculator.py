"""The V2 runner's speculator for DSpark: vLLM's own, sampling through our heads.

vLLM's DSpark knows the vanilla Markov head; gated and rnn heads also read the backbone's states. The loop below is
captured in the draft's CUDA graph like vLLM's.
"""

import torch
from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator


class MarkovSpeculator(DSparkSpeculator):
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
        tokens = model.sample_block(
            hidden,
            None if self.sample_from_anchor else head_hidden[first],
            anchors,
            lambda logits, step: self._sample_logits(logits, slots[:, step], positions[:, step], step),
        )
        self.draft_tokens[:num_reqs] = tokens
        if self.use_confidence_head:
            previous = torch.cat((anchors[:, None], tokens[:, :-1]), dim=1)
            embedded = model.model.markov_head.embed(previous)
            confidence = model.compute_confidence(hidden.flatten(0, 1), embedded.flatten(0, 1))
            self.draft_token_confidence_probs[:num_reqs] = confidence.view(num_reqs, steps)
