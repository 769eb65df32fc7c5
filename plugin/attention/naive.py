"""Slow, obvious reference of the merged attention: one query token, one head, one key at a time. Tests only."""

import math

import torch


def merged_attention_naive(
    q: torch.Tensor,
    self_k: list[torch.Tensor],
    self_v: list[torch.Tensor],
    cross_k: list[torch.Tensor],
    cross_v: list[torch.Tensor],
    query_lens: list[int],
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """Softmax over the visible self keys and all encoder keys of each request, without pages.

    Args:
        q: `[num_tokens, num_heads, head_dim]`, requests one after another, the last `query_lens[r]` positions of
            request r.
        self_k, self_v: per request `[seq_len, num_kv_heads, head_dim]`, including the query tokens' own keys.
        cross_k, cross_v: per request `[encoder_len, num_kv_heads, head_dim]`.
        query_lens: query tokens of each request.
        window: None, or the number of most recent self keys (the query's own included) that are visible.
        scale: factor on the scores.

    Returns:
        `[num_tokens, num_heads, head_dim]`, float64 inside, in the dtype of `q`.
    """
    out = torch.zeros_like(q, dtype=torch.float64)
    token = 0
    for r, query_len in enumerate(query_lens):
        seq_len = self_k[r].shape[0]
        group = q.shape[1] // self_k[r].shape[1]
        for i in range(query_len):
            position = seq_len - query_len + i
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(q.shape[1]):
                keys = [*self_k[r][first : position + 1, head // group], *cross_k[r][:, head // group]]
                values = [*self_v[r][first : position + 1, head // group], *cross_v[r][:, head // group]]
                scores = [scale * float(torch.dot(q[token, head].double(), key.double())) for key in keys]
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                for weight, value in zip(weights, values, strict=True):
                    out[token, head] += weight / sum(weights) * value.double()
            token += 1
    return out.to(q.dtype)
