"""What the verifier must answer: transformers' own greedy `generate` in float32, one prompt at a time.

No batch and no padding, so nothing of ours and nothing of a padded batch can leak into the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import T5Gemma2ForConditionalGeneration


@dataclass(frozen=True)
class Greedy:
    """One greedy answer.

    `tokens`: the new token ids, the end token included when it was reached; `gaps[i]`: the top-1 minus top-2 logit
    at step i, which says how far the answer is from a tie; `finish_reason`: "stop" or "length".
    """

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]
    finish_reason: str


class GreedyReference:
    """Greedy answers of one checkpoint, remembered by prompt."""

    def __init__(self, folder: Path) -> None:
        self.model = T5Gemma2ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.eos = int(self.model.config.decoder.eos_token_id)
        self._known: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}

    def answer(self, encoder_ids: Sequence[int], max_tokens: int, ignore_eos: bool = False) -> Greedy:
        """The greedy continuation of the decoder's start token for `encoder_ids`, at most `max_tokens` long."""
        tokens, gaps = self._run(tuple(encoder_ids), max_tokens)
        tokens, gaps = tokens[:max_tokens], gaps[:max_tokens]
        if not ignore_eos and self.eos in tokens:
            end = tokens.index(self.eos) + 1
            return Greedy(tuple(tokens[:end]), tuple(gaps[:end]), "stop")
        return Greedy(tuple(tokens), tuple(gaps), "length")

    def answers(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, ignore_eos: bool = False
    ) -> list[Greedy]:
        """`answer` for each prompt in order."""
        return [self.answer(prompt, max_tokens, ignore_eos) for prompt in prompts]

    def logprobs(self, encoder_ids: Sequence[int], outputs: Sequence[int]) -> torch.Tensor:
        """`[len(outputs) + 1, vocab]`: log probabilities of every next token along `outputs`."""
        return self.logits(encoder_ids, [outputs])[0].log_softmax(-1)

    @torch.inference_mode()
    def logits(self, encoder_ids: Sequence[int], outputs: Sequence[Sequence[int]]) -> torch.Tensor:
        """`[len(outputs), length + 1, vocab]`: logits of every next token along each of `outputs`, all of one
        length, in one pass.
        """
        start = int(self.model.config.decoder.bos_token_id)
        encoder = torch.tensor([list(encoder_ids)]).expand(len(outputs), -1)
        return self.model(
            input_ids=encoder,
            attention_mask=torch.ones_like(encoder),
            decoder_input_ids=torch.tensor([[start, *row] for row in outputs]),
        ).logits

    def _run(self, encoder_ids: tuple[int, ...], length: int) -> tuple[list[int], list[float]]:
        known = self._known.get(encoder_ids)
        if known is None or len(known[0]) < length:
            known = self._known[encoder_ids] = self._generate(encoder_ids, length)
        return known

    @torch.inference_mode()
    def _generate(self, encoder_ids: tuple[int, ...], length: int) -> tuple[list[int], list[float]]:
        """Exactly `length` tokens: the end token does not stop here, `answer` cuts."""
        self.model.generation_config.eos_token_id = None
        out = self.model.generate(
            input_ids=torch.tensor([encoder_ids]),
            attention_mask=torch.ones(1, len(encoder_ids), dtype=torch.long),
            max_new_tokens=length,
            do_sample=False,
            num_beams=1,
            output_logits=True,
            return_dict_in_generate=True,
        )
        top = torch.stack(out.logits)[:, 0].topk(2, dim=-1).values
        return out.sequences[0, 1:].tolist(), (top[:, 0] - top[:, 1]).tolist()
