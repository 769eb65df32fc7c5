"""DSpark's Markov heads: a bias on the logits of slot k from the token drafted for slot k - 1.

Plain PyTorch, no vLLM: the V1 proposer and the V2 speculator call the same code, and training writes the same names.

    e_k = markov_w1[prev_k]                       prev_1 is the anchor; ids of the verifier's vocabulary
    vanilla:  bias = markov_w2 e_k
    gated:    bias = markov_w2 (sigmoid(gate_proj [h_k; e_k]) * e_k)
    rnn:      g, c, o = joint_proj [s; e_k; h_k]
              s <- sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c);  bias = markov_w2 tanh(o)
              s is 0 before the block's first slot, the anchor's own

Source: the training code's models/dspark (drafts in Speculators format).
"""

import torch
from torch import nn

from plugin.drafts.families import MARKOV_HEAD_TYPES


class MarkovHead(nn.Module):
    """One of the three heads. `gate` is the checkpoint's `gate_proj`, a name that vLLM would stack into an MLP.

    Args:
        head_type: "vanilla", "gated" or "rnn".
        vocab_size: rows of `markov_w1` (verifier vocabulary).
        draft_vocab_size: rows of `markov_w2`.
        rank: width of the embedding.
        hidden_size: width of the backbone's states.

    Raises:
        ValueError: an unknown head type.
    """

    def __init__(
        self, head_type: str, vocab_size: int, draft_vocab_size: int, rank: int, hidden_size: int
    ) -> None:
        super().__init__()
        if head_type not in MARKOV_HEAD_TYPES:
            raise ValueError(f"markov_head_type is {head_type!r}, not one of {', '.join(MARKOV_HEAD_TYPES)}")
        self.head_type, self.rank = head_type, rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        if head_type == "gated":
            self.gate = nn.Linear(hidden_size + rank, rank)
        elif head_type == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def initial_state(self, hidden: torch.Tensor) -> torch.Tensor:
        """The state before the block, `[num_requests, rank]` of zeros; only the rnn head reads it."""
        return hidden.new_zeros(hidden.shape[0], self.rank)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """`[num_requests]` -> `[num_requests, rank]`."""
        embedded: torch.Tensor = self.markov_w1(token_ids)
        return embedded

    def next_state(self, embedded: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The state after a slot that is not sampled; arguments as for `forward`."""
        return self._recur(embedded, hidden, state)[1] if self.head_type == "rnn" else state

    def _recur(
        self, embedded: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gate, candidate, output = self.joint_proj(torch.cat((state, embedded, hidden), dim=-1)).chunk(
            3, dim=-1
        )
        keep = torch.sigmoid(gate)
        return torch.tanh(output), keep * state + (1 - keep) * torch.tanh(candidate)

    def forward(
        self, embedded: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Bias of one slot.

        Args:
            embedded: `[num_requests, rank]`, `embed` of the previous tokens.
            hidden: `[num_requests, hidden_size]`, the slot's normed backbone state.
            state: `[num_requests, rank]`.

        Returns:
            The bias `[num_requests, draft_vocab_size]` and the next state.
        """
        if self.head_type == "gated":
            embedded = torch.sigmoid(self.gate(torch.cat((hidden, embedded), dim=-1))) * embedded
        elif self.head_type == "rnn":
            embedded, state = self._recur(embedded, hidden, state)
        return self.markov_w2(embedded), state
