"""What a draft guesses, teacher forced, at exactly the anchors at which a server asked it.

    python -m benchmarks.serving_walk --draft FOLDER --verifier FOLDER --k 7 served.jsonl

A line of the file is one served greedy request: `prompt` and `response` (token ids) and `accepted` (draft tokens that
were accepted, step by step). Written to standard output is one JSON object, the fields of `Walk`. What is computed here
knows nothing of the serving code, so that the two can be compared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.data.samples import Batch, Sample, collate
from plugin.training.draft.anchors import make_blocks
from plugin.training.draft.checkpoint import load_draft
from plugin.training.draft.model import TrainableDraft
from plugin.training.verifier.extraction import Extractor

_ROWS_AT_ONCE = 8
_ANCHORS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Served:
    """One greedy request: token ids of encoder and answer (with the end token, if it came), accepted by step."""

    prompt: list[int]
    response: list[int]
    accepted: list[int]

    def anchors(self) -> list[int]:
        """The decoder column of the anchor of every step; column 0 is the start token, column 1 the first answer token.

        A step that accepts a tokens moves the anchor by 1 + a. Raises `ValueError` when the steps do not lead from the
        first token to the last: one began at the last token or after it, or they made fewer tokens.
        """
        *starts, end = accumulate((1 + count for count in self.accepted), initial=1)
        last = len(self.response)
        if (starts and starts[-1] >= last) or end < last:
            raise ValueError(f"{len(starts)} steps lead to token {end} of an answer of {last}")
        return starts


@dataclass(frozen=True, slots=True)
class Walk:
    """Sums over the anchors, by slot from 1 to K.

    `counted`: anchors whose slot lies inside the answer; `correct`: of these, where the draft's likeliest token is the
    answer's, with the true tokens before it given; `matched`: anchors where this slot and all before it are correct.
    `greedy` of the `tokens` answer tokens are the verifier's likeliest, computed in float32.
    """

    anchors: int
    counted: list[int]
    correct: list[int]
    matched: list[int]
    tokens: int
    greedy: int


@torch.no_grad()
def walk(
    draft: TrainableDraft, extractor: Extractor, served: Sequence[Served], k: int, pad_id: int, start_id: int
) -> Walk:
    """Sums over all requests; slots beyond K do not exist, as in serving. Raises `ValueError` as `Served.anchors`."""
    draft.eval()
    sums = torch.zeros(3, k, dtype=torch.long)
    tokens = greedy = anchors = 0
    for first in range(0, len(served), _ROWS_AT_ONCE):
        part = served[first : first + _ROWS_AT_ONCE]
        samples = [Sample(request.prompt, request.response) for request in part]
        batch = collate(samples, pad_id, start_id).to(draft.t2d.device)
        states = extractor(batch.prompts, batch.prompt_mask, batch.tokens)
        likeliest = extractor.greedy_tokens(states.states[:, :-1])
        told = batch.loss_mask[:, 1:]
        tokens += int(told.sum())
        greedy += int(((likeliest == batch.tokens[:, 1:]) & told).sum())
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
    """[3, K]: counted, correct and matched of slots 1 ... K of the blocks at `columns`, one list a row."""
    width = max(map(len, columns))
    # A row with fewer anchors repeats column 0, marked invalid.
    padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in columns], device=aux.device)
    valid = torch.tensor([[place < len(row) for place in range(width)] for row in columns], device=aux.device)
    blocks = make_blocks(
        batch.tokens, batch.documents, batch.positions, padded, valid, k + 1, draft.config.mask_token_id
    )
    hidden = draft(aux, batch.documents, batch.positions, blocks)
    logits, _ = draft.draft_logits(hidden, blocks)
    counted = blocks.loss_mask[..., 1:]
    correct = (draft.to_target(logits.argmax(dim=-1)) == blocks.targets)[..., 1:] & counted
    matched = correct.long().cumprod(dim=-1)
    return torch.stack([part.long().sum(dim=(0, 1)) for part in (counted, correct, matched)])


def main(argv: list[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_walk", description=__doc__)
    parser.add_argument("--draft", type=Path, required=True, help="folder of the draft")
    parser.add_argument("--verifier", type=Path, required=True, help="folder of its verifier")
    parser.add_argument("--k", type=int, required=True, help="draft tokens a step")
    parser.add_argument("served", type=Path, help="JSONL of served requests")
    arguments = parser.parse_args(argv)
    served = [Served(**json.loads(line)) for line in arguments.served.read_text().splitlines()]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draft = load_draft(arguments.draft).to(device)
    verifier = T5Gemma2ForConditionalGeneration.from_pretrained(
        arguments.verifier, dtype=torch.float32, attn_implementation="sdpa"
    )
    extractor = Extractor(verifier.to(device).eval(), draft.config.aux_hidden_state_layer_ids)
    decoder = verifier.config.decoder
    found = walk(draft, extractor, served, arguments.k, decoder.pad_token_id, decoder.bos_token_id)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
