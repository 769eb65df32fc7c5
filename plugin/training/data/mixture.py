"""The training data of a run: pairs of several sources in exact counts, in an order that the seed alone decides.

    >>> from plugin.training.data.mixture import read_data
    >>> data = read_data(["t5gemma2_200k:mathinstruct", "demo:1000"], seed=42)

As in the published recipe, source number i (from 0, over all source specs) is drawn in the order of a permutation
seeded with seed + i, and the drawn pairs of all sources are then shuffled with the seed itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plugin.training.data.conversations import Render, plain_text
from plugin.training.data.pairs import DataError, Pair, Unusable
from plugin.training.data.profiles import sources_of
from plugin.training.data.sources import Source

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mixture:
    """`pairs` in training order; `counts`, JSON-ready: `seed`, `pairs`, `sha256` of the pairs in order, `sources`.

    Each of the sources has `source`, `place` (its spec), `seed` (of its draw), `rows` (all it has), `asked` (null:
    all), `taken`, `skipped` (rows that the draw met and could not use) with how many for which of the `reasons`,
    `converters` (how rows became pairs), `sha256` of its pairs in the order of the draw, and the facts of its kind:
    dataset, config, split and revision, or the file.
    """

    pairs: list[Pair]
    counts: dict[str, Any]


def read_data(
    source_specs: Sequence[str], seed: int, render: Render = plain_text, prompts_alone: bool = False
) -> Mixture:
    """The pairs of all `source_specs` (see `plugin.training.data.profiles`); the same for the same arguments and data.

    `render` makes the encoder's text of a conversation's turns. `prompts_alone` leaves the responses empty, for a
    verifier that will answer. Raises `DataError`, one line: a source spec that means
    nothing, a bad row by file, line and field, a source with fewer usable rows than asked for, and no rows at all.
    """
    sources = [(spec, source) for spec in source_specs for source in sources_of(spec)]
    if not sources:
        raise DataError("no training data: name a JSONL file, demo:N, hf:DATASET or a mixture")
    pairs: list[Pair] = []
    drawn_from = []
    for index, (spec, source) in enumerate(sources):
        drawn, facts = _draw(source, seed + index, render, prompts_alone)
        drawn_from.append({"source": source.name, "place": spec, "seed": seed + index, **facts})
        pairs += drawn
    order = np.random.default_rng(seed).permutation(len(pairs))
    shuffled = [pairs[number] for number in order]
    counts = {"seed": seed, "pairs": len(shuffled), "sha256": _sha256(shuffled), "sources": drawn_from}
    return Mixture(shuffled, counts)


def _draw(
    source: Source, seed: int, render: Render, prompts_alone: bool
) -> tuple[list[Pair], dict[str, Any]]:
    rows = source.open(seed)
    pairs: list[Pair] = []
    skipped: Counter[str] = Counter()
    for number in np.random.default_rng(seed).permutation(rows.size):
        if len(pairs) == source.count:
            break
        name = rows.name(int(number))
        try:
            pairs.append(Pair(*source.columns.texts(rows.row(int(number)), render, prompts_alone), name))
        except Unusable as reason:
            skipped[str(reason)] += 1
        except ValueError as error:
            raise DataError(f"{name}: {error}") from None
    reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.most_common())
    met = f"{rows.size} rows" + (f" ({reasons})" if reasons else "")
    if source.count is not None and len(pairs) < source.count:
        raise DataError(f"{source.name}: {source.count} pairs asked for, {len(pairs)} usable of {met}")
    if not pairs:
        raise DataError(f"{source.name}: 0 usable of {met}")
    logger.info(
        "%s: %d of %d rows taken, %d skipped%s", source.name, len(pairs), rows.size, skipped.total(),
        f": {reasons}" if reasons else "",
    )  # fmt: skip
    counts = {
        "rows": rows.size,
        "asked": source.count,
        "taken": len(pairs),
        "skipped": skipped.total(),
        "reasons": dict(skipped),
        "converters": source.columns.converters(),
        "sha256": _sha256(pairs),
    }
    return pairs, {**rows.facts, **counts}


def _sha256(pairs: Sequence[Pair]) -> str:
    """Of the texts, each pair as a JSON list on its own line: the same for the same texts from any source."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(json.dumps([pair.prompt, pair.response]).encode() + b"\n")
    return digest.hexdigest()
