"""DSpark's two heads over whole blocks: the Markov head, which is serving's own, and the confidence head."""

from __future__ import annotations

import torch
from torch import nn

from plugin.drafts.markov import MarkovHead
from plugin.training.draft.config import DraftConfig


class BlockMarkovHead(MarkovHead):
    """Serving's Markov head, which biases one slot, over all slots of a block, under the checkpoint's tensor names."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__(
            config.markov_head_type, config.vocab_size, config.draft_vocab_size, config.markov_rank,
            config.hidden_size,
        )  # fmt: skip
        nn.init.normal_(self.markov_w1.weight, std=0.02)
        if self.head_type == "gated":
            self.gate_proj = self._modules.pop("gate")

    @property
    def gate(self) -> nn.Module:
        """What the checkpoint and training call `gate_proj`; serving cannot, since vLLM would stack it into an MLP."""
        return self.gate_proj

    def block_bias(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Bias [..., B, draft vocabulary] from `states` [..., B, hidden] and `embedded` [..., B, rank].

        `embedded` belongs to the tokens before the slots. An rnn head's state runs along the block, from 0.
        """
        memory = torch.zeros_like(embedded[..., 0, :])
        if self.head_type != "rnn":
            return self(embedded, states, memory)[0]
        outputs = []
        for slot in range(embedded.shape[-2]):
            output, memory = self._recur(embedded[..., slot, :], states[..., slot, :], memory)
            outputs.append(output)
        return self.markov_w2(torch.stack(outputs, dim=-2))


class ConfidenceHead(nn.Module):
    """The logit of a slot's chance of acceptance, from its state and, by choice, its Markov embedding."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.with_markov = config.confidence_head_with_markov
        self.proj = nn.Linear(config.hidden_size + (config.markov_rank if self.with_markov else 0), 1)

    def forward(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """[..., hidden] and [..., rank] to [...]."""
        features = torch.cat([states, embedded], dim=-1) if self.with_markov else states
        return self.proj(features).squeeze(-1)
