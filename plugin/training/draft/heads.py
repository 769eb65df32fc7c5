"""DSpark's two heads: the Markov head that lets a slot know its predecessor, and the confidence head."""

from __future__ import annotations

import torch
from torch import nn

from plugin.training.draft.config import DraftConfig


class MarkovHead(nn.Module):
    """A low-rank bias on the draft logits from the previous token: vanilla, gated or rnn.

    vanilla: w2 e. gated: w2 (sigmoid(gate_proj[h; e]) * e). rnn: a gated state s runs along the block, starting at 0,
    joint_proj[s; e; h] = (gate, candidate, output), s = sigmoid(gate) s + (1 - sigmoid(gate)) tanh(candidate), and the
    bias is w2 tanh(output).
    """

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        rank, width = config.markov_rank, config.hidden_size
        self.kind = config.markov_head_type
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        nn.init.normal_(self.markov_w1.weight, std=0.02)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(width + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(width + 2 * rank, 3 * rank)

    def embed(self, previous: torch.Tensor) -> torch.Tensor:
        """Previous target ids of any shape as [..., rank]."""
        return self.markov_w1(previous)

    def forward(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Bias [..., B, draft vocabulary] from `states` [..., B, hidden] and `embedded` [..., B, rank]."""
        if self.kind == "gated":
            embedded = torch.sigmoid(self.gate_proj(torch.cat([states, embedded], dim=-1))) * embedded
        elif self.kind == "rnn":
            embedded = self._run(states, embedded)
        return self.markov_w2(embedded)

    def _run(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        memory = torch.zeros_like(embedded[..., 0, :])
        outputs = []
        for slot in range(embedded.shape[-2]):
            joint = self.joint_proj(torch.cat([memory, embedded[..., slot, :], states[..., slot, :]], dim=-1))
            gate, candidate, output = joint.chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            memory = gate * memory + (1 - gate) * torch.tanh(candidate)
            outputs.append(torch.tanh(output))
        return torch.stack(outputs, dim=-2)


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
