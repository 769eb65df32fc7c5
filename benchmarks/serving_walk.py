"""What a draft guesses, teacher forced, at exactly the anchors at which a server asked it.

Used by `served_accuracy`; what is computed here knows nothing of the serving code, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import T5Gemma2ForConditionalGeneration

from benchmarks.comparison import Request, Walk
from plugin.training.data.samples import Batch, Sample, collate
from plugin.training.draft.anchors import make_blocks
from plugin.training.draft.checkpoint import load_draft
from plugin.training.draft.model import TrainableDraft
from plugin.training.verifier.extraction import Extractor

_ROWS_AT_ONCE = 8
_ANCHORS_AT_ONCE = 16


def walk_checkpoints(draft: Path, verifier: Path, requests: Sequence[Request], k: int) -> Walk:
    """The walk of the draft and the verifier in these folders, on the GPU where there is one.

    Raises:
        ValueError: as `walk`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_draft(draft).to(device)
    target = T5Gemma2ForConditionalGeneration.from_pretrained(
        verifier, dtype=torch.float32, attn_implementation="sdpa"
    )
    extractor = Extractor(target.to(device).eval(), model.config.aux_hidden_state_layer_ids)
    decoder = target.config.decoder
    return walk(model, extractor, requests, k, decoder.pad_token_id, decoder.bos_token_id)


@torch.no_grad()
def walk(
    draft: TrainableDraft,
    extractor: Extractor,
    requests: Sequence[Request],
    k: int,
    pad_id: int,
    start_id: int,
) -> Walk:
    """Sums over all requests; the draft fills its trained block, of which slots 1 ... K count, as in serving.

    Raises:
        ValueError: the steps of a request do not lead to its end.
    """
    draft.eval()
    sums = torch.zeros(3, k, dtype=torch.long)
    tokens = greedy = anchors = 0
    for first in range(0, len(requests), _ROWS_AT_ONCE):
        part = requests[first : first + _ROWS_AT_ONCE]
        samples = [Sample(request.prompt, request.response) for request in part]
        batch = collate(samples, pad_id, start_id).to(draft.t2d.device)
        states = extractor(batch.prompts, batch.prompt_mask, batch.tokens)
        likeliest = extractor.greedy_tokens(states.states[:, :-1])
        answered = batch.loss_mask[:, 1:]
        tokens += int(answered.sum())
        greedy += int(((likeliest == batch.tokens[:, 1:]) & answered).sum())
        columns = [request.anchors() for request in part]
        anchors += sum(map(len, columns))
        for start in range(0, max(map(len, columns)), _ANCHORS_AT_ONCE):
            chosen = [row[start : start + _ANCHORS_AT_ONCE] for row in columns]
            sums += _slots(draft, states.aux, batch, chosen, k).cpu()
    counted, correct, matched = sums.tolist()
    return Walk(anchors, counted, correct, matched, tokens, greedy)


def _slots(
    draft: TrainableDraft, aux: torch.Tensor, batch: Batch, columns: Sequence[Sequence[int]], k: int
) -> torch.Tensor:
    """[3, K]: counted, correct and matched of the first K slots that predict, of whole blocks at `columns`, one list a
    row.
    """
    width = max(map(len, columns))
    # A row with fewer anchors repeats column 0, marked invalid.
    padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in columns], device=aux.device)
    valid = torch.tensor([[slot < len(row) for slot in range(width)] for row in columns], device=aux.device)
    config = draft.config
    blocks = make_blocks(
        batch.tokens, batch.documents, batch.positions, padded, valid, config.block_size, config.mask_token_id,
        config.ahead,
    )  # fmt: skip
    hidden = draft(aux, batch.documents, batch.positions, blocks)
    logits, _ = draft.draft_logits(hidden, blocks)
    verified = slice(config.first_slot, config.first_slot + k)
    counted = blocks.loss_mask[..., verified]
    correct = (draft.to_target(logits.argmax(dim=-1)) == blocks.targets)[..., verified] & counted
    matched = correct.long().cumprod(dim=-1)
    return torch.stack([part.long().sum(dim=(0, 1)) for part in (counted, correct, matched)])
