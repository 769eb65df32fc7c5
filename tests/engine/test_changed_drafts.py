"""Configs of the demo's drafts that were changed and not refused, in the engine: what is drafted is worth what it was,
or the probe's sentence says that it is not. `tests/app/drafts/test_mutations.py` judges all of them, teacher forced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from app.config.settings import Settings, SettingsError
from app.drafts.identity import Identity
from app.drafts.probe import Probe, promised_length
from app.probing import PROMPTS, TOKENS
from plugin.drafts.checkpoint import DEMO, CheckpointError, Checkpoints, resolve
from plugin.drafts.families import FAMILIES
from plugin.training.data.problems.generate import take
from tests.app.drafts.mutations import Config, config_mutations, trained_shape, without_a_reader
from tests.engine.harness import Counters, Job, engine

pytestmark = pytest.mark.engine

VERIFIER = DEMO / "verifier"
FEW = "rope_parameters.factor = 4.0"
SAMPLE = (FEW, "mask_token_id = 5", "rope_parameters.rope_theta = 1.5")
"""Some of the changes that reach the draft's arithmetic."""


def mostly_slow(family: str, *more: str) -> Any:
    """Each engine takes seconds to start; DFlash and one change stand for the others, which are slow."""
    marks = [] if family == "dflash" and more in ((), (FEW,)) else [pytest.mark.slow]
    return pytest.param(family, *more, marks=marks)


@dataclass(frozen=True)
class Found:
    """What a draft did: on fresh problems, and on the probe's prompts."""

    problems: Counters
    probed: Counters

    def warning(self, family: str, k: int) -> str | None:
        sums = self.probed
        promised = promised_length(DEMO / family, k, 7)
        return Probe(len(PROMPTS), sums.drafts, sums.draft_tokens, sums.accepted_tokens, promised).warning


@cache
def jobs() -> tuple[list[Job], list[Job]]:
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER)
    problems = [one.question for one in take(11, "fresh", 5)]
    first, second = (
        [Job(tuple(tokenizer(text).input_ids), TOKENS) for text in texts] for texts in (problems, PROMPTS)
    )
    return first, second


def served(folder: Path, k: int) -> Found:
    with engine(VERIFIER, folder, k) as running:
        start = running.counters
        running.run(jobs()[0])
        middle = running.counters
        running.run(jobs()[1])
        return Found(middle - start, running.counters - middle)


@cache
def of_the_demo(family: str) -> Found:
    return served(DEMO / family, 7)


class Changed:
    """A folder with a draft of the demo, whose config is written anew."""

    def __init__(self, family: str, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").symlink_to(DEMO / family / "model.safetensors")
        self.folder = folder
        self.config: Config = json.loads((DEMO / family / "config.json").read_text())

    def write(self, config: Config) -> Checkpoints | None:
        """The checkpoints that are served with this config; None if it is refused."""
        (self.folder / "config.json").write_text(json.dumps(config))
        try:
            checkpoints = resolve(None, str(self.folder), str(VERIFIER), None)
            Identity.of(checkpoints, Settings())
        except (CheckpointError, SettingsError):
            return None
        return checkpoints

    def the_same(self, config: Config) -> bool:
        """Whether it is served, and as what the demo's draft is."""
        found, demo = self.write(config), trained_shape(self.config, 320)
        if found is None or found.draft is None or found.k != 7:
            return False
        return not config.get("sample_from_anchor") and trained_shape(config, 320) == demo


@pytest.mark.parametrize("family", [mostly_slow(family) for family in FAMILIES])
def test_what_nobody_reads(family: str, tmp_path: Path) -> None:
    """Every value that can be changed without another draft coming of it, changed at once: not a token differs."""
    draft = Changed(family, tmp_path / "draft")
    changed = without_a_reader(draft.config, draft.the_same)
    assert draft.the_same(changed) and changed["transformer_layer_config"]["initializer_range"] == "x"
    assert served(draft.folder, 7) == of_the_demo(family)


@pytest.mark.parametrize(
    ("family", "what"), [mostly_slow(family, what) for family in FAMILIES for what in SAMPLE]
)
def test_what_changes_the_draft(family: str, what: str, tmp_path: Path) -> None:
    """At least half of the demo's acceptance, or the sentence."""
    draft = Changed(family, tmp_path / "draft")
    config = next(config for name, config in config_mutations(draft.config) if name.endswith(what))
    checkpoints = draft.write(config)
    assert checkpoints is not None and checkpoints.k == 7
    found, demo = served(draft.folder, 7), of_the_demo(family)
    assert demo.warning(family, 7) is None
    half = demo.problems.acceptance / 2
    assert found.problems.acceptance >= half or found.warning(family, 7) is not None, found
    assert found.problems != demo.problems
