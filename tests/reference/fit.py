"""Fits a tiny draft to known greedy answers, so that engine tests see accepted, rejected and partly accepted blocks.

The forward is `DraftReference`'s, mapped over a batch with `torch.func.vmap`; nothing of the serving or the training
code takes part. Not a training recipe: the draft only has to be often right on the very prompts it is fitted to.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.func import vmap

from tests.reference.draft_block import DraftReference, aux_states
from tests.reference.greedy import GreedyReference
from tests.reference.tiny import BOS
from tests.reference.tiny_drafts import DraftSpec, draft_config, draft_tensors, verifier_table, write_folder

FROZEN = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
BLOCK = 7


def fit_draft(
    folder: Path,
    spec: DraftSpec,
    verifier: Path,
    reference: GreedyReference,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    steps: int = 300,
    batch: int = 48,
) -> Path:
    """Write to `folder` a draft fitted to the greedy answers of `prompts`; return `folder`.

    The draft's vocabulary holds the most frequent tokens of the answers; a slot whose token is not in it has no loss.
    """
    torch.manual_seed(spec.seed)
    answers = [reference.answer(prompt, max_tokens).tokens for prompt in prompts]
    table = verifier_table(verifier)
    config = draft_config(spec, verifier)
    tensors = draft_tensors(spec, table, _frequent_ids(answers, spec.draft_vocab))
    draft = DraftReference(config, tensors, table)
    trained = [
        name for name, t in draft.w.items() if name not in FROZEN and not name.startswith("confidence_head")
    ]
    for name in trained:
        draft.w[name].requires_grad_(True)
    context = [
        aux_states(reference.model, prompt, (BOS, *answer), draft.aux_layers)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    draft_ids = _to_draft_ids(draft, len(table))
    places = [(s, p) for s, answer in enumerate(answers) for p in range(1, len(answer) + 1)]
    optimizer = torch.optim.Adam([draft.w[name] for name in trained], lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    shuffle = random.Random(spec.seed)
    for _ in range(steps):
        chosen = shuffle.sample(places, min(batch, len(places)))
        loss = _loss(draft, draft_ids, context, answers, chosen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    fitted = {name: draft.w[name].detach() for name in tensors}
    return write_folder(folder, config, fitted)


def _frequent_ids(answers: Sequence[Sequence[int]], size: int | None) -> list[int] | None:
    """The `size` most frequent ids, ascending; ids that never occur fill the rest in order."""
    if size is None:
        return None
    counts = Counter(token for answer in answers for token in answer)
    ranked = [token for token, _ in counts.most_common()]
    ranked += [token for token in range(size + len(ranked)) if token not in counts]
    return sorted(ranked[:size])


def _to_draft_ids(draft: DraftReference, vocab: int) -> Tensor:
    """`[vocab]`: the draft id of each verifier id, -100 where the draft has none."""
    ids = torch.full((vocab,), -100)
    for i in range(len(draft.head)):
        ids[draft.target_id(i)] = i
    return ids


def _loss(
    draft: DraftReference,
    draft_ids: Tensor,
    context: Sequence[Tensor],
    answers: Sequence[Sequence[int]],
    chosen: Sequence[tuple[int, int]],
) -> Tensor:
    """Cross-entropy of the true tokens of the chosen blocks; a block is (sequence, anchor position)."""
    longest = max(p for _, p in chosen)
    aux = torch.stack([_padded(context[s], p, longest) for s, p in chosen])
    visible = torch.stack([torch.arange(longest) < p for _, p in chosen])
    # The token at decoder position p is answers[s][p - 1]: position 0 is the start token.
    rows = [answers[s][p - 1 : p + BLOCK] for s, p in chosen]
    tokens = torch.tensor([[*row, *[0] * (BLOCK + 1 - len(row))] for row in rows])
    known = torch.tensor([[k < len(row) for k in range(1, BLOCK + 1)] for row in rows])
    hidden = vmap(lambda a, t, v: draft.block_hidden(a, t, BLOCK, v))(aux, tokens[:, 0], visible)
    logits = hidden[:, 1:] @ draft.head.T
    if draft.family == "dspark":
        logits = logits + vmap(lambda t, h: _biases(draft, t, h))(tokens[:, :-1], hidden)
    labels = draft_ids[tokens[:, 1:]].masked_fill(~known, -100)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def _biases(draft: DraftReference, previous: Tensor, hidden: Tensor) -> Tensor:
    """Markov biases `[BLOCK, draft vocabulary]` of the slots behind the anchor's, given their true previous tokens.

    `hidden`: `[BLOCK + 1, hidden]`.
    """
    biases, state = [], draft.first_state(previous[0], hidden[0])
    for k in range(BLOCK):
        bias, state = draft.markov_bias(previous[k], hidden[k + 1], state)
        biases.append(bias)
    return torch.stack(biases)


def _padded(aux: Tensor, length: int, size: int) -> Tensor:
    """The first `length` positions of `aux`, zero-padded to `size`."""
    return torch.nn.functional.pad(aux[:length], (0, 0, 0, 0, 0, size - length))
