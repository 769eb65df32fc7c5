"""What a draft is worth: losses and accuracies at random anchors, and acceptance as greedy serving would count it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from plugin.training.data.samples import Batch, Sample, batches, collate
from plugin.training.draft.anchors import all_anchors, make_blocks
from plugin.training.draft.model import TrainableDraft
from plugin.training.run.metrics import Acceptance, Tally, leading_matches
from plugin.training.run.trainer import DraftTrainer, NotFinite
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.packing import pack, packed_rows

_ANCHORS_AT_ONCE = 16


@torch.no_grad()
def evaluate(
    trainer: DraftTrainer, samples: Sequence[Sample], pause: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Losses and teacher-forced accuracies over `samples`, under the names of val_metrics.json.

    The anchors depend on the seed alone, so that every epoch is scored on the same blocks. The trainer's processes take
    turns at the batches, and all get the metrics of all. `pause` is called between batches. Raises `NotFinite` naming
    the samples whose verifier states are not finite, or the loss that is not.
    """
    settings, draft, processes = trainer.settings, trainer.draft, trainer.processes
    was_training = draft.training
    draft.eval()
    own, bad = Tally(draft.config.block_size, draft.config.first_slot), []
    lengths = [1 + len(sample.response) for sample in samples]
    groups = pack(lengths, range(len(samples)), settings.total_length)
    firsts = range(0, len(groups), settings.rows)
    for turn in range(0, len(firsts), processes.count):
        pause()
        for first in firsts[turn + processes.rank : turn + processes.rank + 1]:
            chosen = [[samples[index] for index in group] for group in groups[first : first + settings.rows]]
            rows = packed_rows(chosen, trainer.extractor.pad_id, trainer.extractor.start_id)
            blocks = trainer.blocks(rows, settings.seed, "validation", first)
            result = trainer.block_step(rows, blocks, judge=True)
            bad += [name for name, good in zip(rows.ids, result.finite.tolist(), strict=True) if not good]
            assert result.correct is not None
            terms = {name: value.detach() for name, value in result.terms.items()}
            own.add(terms, result.correct, blocks.loss_mask.to(result.correct.device))
    draft.train(was_training)
    if named := [name for found in processes.gathered(bad) for name in found]:
        raise NotFinite(f"validation: the verifier's states are not finite on {', '.join(named)}")
    tally = Tally(draft.config.block_size, draft.config.first_slot)
    for sums in processes.gathered(own.sums()):
        tally.merge(sums)
    metrics = tally.metrics()
    for name, value in metrics.items():
        if not abs(value) < float("inf"):
            raise NotFinite(f"validation after step {trainer.state.global_step}: {name} is {value}")
    return metrics


@torch.no_grad()
def serving_acceptance(
    draft: TrainableDraft,
    extractor: Extractor,
    samples: Sequence[Sample],
    draft_length: int,
    batch_size: int = 32,
    short_blocks: bool = False,
) -> Acceptance:
    """Acceptance at K = `draft_length` as greedy serving would count it, one request at a time.

    `samples` hold the verifier's own greedy responses. Serving is walked through: from an anchor on to the token after
    its leading matches, until the response's last token is the anchor or is accepted. The draft fills its whole block,
    of which the first K tokens are verified, or with `short_blocks` a block that is as short as K.
    """
    was_training = draft.training
    draft.eval()
    runs: list[int] = []
    for group in batches(samples, batch_size, range(len(samples))):
        batch = collate(group, extractor.pad_id, extractor.start_id).to(draft.t2d.device)
        matches = _leading_matches(draft, extractor, batch, draft_length, short_blocks)
        for row, sample in enumerate(group):
            column, last = 1, len(sample.response)
            while column < last:
                runs.append(int(matches[row, column]))
                column += 1 + runs[-1]
    draft.train(was_training)
    return Acceptance.from_runs(torch.tensor(runs), draft_length)


def _leading_matches(
    draft: TrainableDraft, extractor: Extractor, batch: Batch, draft_length: int, short_blocks: bool
) -> torch.Tensor:
    """[rows, length - 1]: leading matches, K at most, of a block at every column."""
    states = extractor(batch.prompts, batch.prompt_mask, batch.tokens)
    columns, valid = all_anchors(batch.loss_mask, batch.documents)
    config, found = draft.config, []
    verified = slice(draft.config.first_slot, draft_length + draft.config.first_slot)
    for part in range(0, columns.shape[1], _ANCHORS_AT_ONCE):
        chosen = slice(part, part + _ANCHORS_AT_ONCE)
        blocks = make_blocks(
            batch.tokens, batch.documents, batch.positions, columns[:, chosen], valid[:, chosen],
            verified.stop if short_blocks else config.block_size, config.mask_token_id, config.ahead,
        )  # fmt: skip
        hidden = draft(states.aux.float(), batch.documents, batch.positions, blocks)
        logits, _ = draft.draft_logits(hidden, blocks)
        right = (draft.to_target(logits.argmax(dim=-1)) == blocks.targets) & blocks.loss_mask
        found.append(leading_matches(right[..., verified]))
    return torch.cat(found, dim=1).cpu()
