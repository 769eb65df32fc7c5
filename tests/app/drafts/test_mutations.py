"""A checkpoint that was changed anywhere is refused by name, or served right, or its worth is said (N06, N07).

Refusals are asked in milliseconds of what the server asks before it loads anything. What is not refused goes through
the training code's own forward pass, teacher forced, on the demo's problems and on the probe's prompts: where the
draft then does less than half, the probe's sentence must say it. `tests/engine/test_changed_drafts.py` asks the engine
about a sample of them.

Whole on 30 November 2026, changes that were refused, that leave the draft what it is, and that were judged by
acceptance, none of which was served below half without the sentence: configs of DFlash 660, 450, 19, of DSpark 724,
450, 19, of DFlare 692, 450, 17; tensors of DFlash 157, 0, 33, of DSpark 189, 6, 39, of DFlare 174, 0, 38.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, T5Gemma2ForConditionalGeneration
from vllm.transformers_utils.configs.speculators import SpeculatorsConfig

import plugin
from app.config.environment import load_settings
from app.config.settings import SettingsError
from app.config_check import check_config
from app.drafts.identity import Identity
from app.drafts.probe import Probe, promised_length
from app.probing import PROMPTS, TOKENS
from plugin.checked_weights import checked
from plugin.drafts.checkpoint import DEMO, CheckpointError, resolve
from plugin.drafts.families import FAMILIES
from plugin.drafts.tensors import never_zero
from plugin.training.data.problems.generate import take
from plugin.training.data.samples import Sample
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.model import TrainableDraft
from plugin.training.run.evaluation import serving_acceptance
from plugin.training.run.metrics import Acceptance
from plugin.training.verifier.extraction import Extractor, VerifierStates
from plugin.training.verifier.greedy import greedy_responses
from tests.app.drafts.mutations import (
    Config,
    Tensors,
    config_mutations,
    tensor_kinds,
    tensor_mutations,
    trained_shape,
)

VERIFIER = DEMO / "verifier"
SETTINGS = load_settings(env_file=None)
EVERY = [
    pytest.param(family, marks=pytest.mark.slow) if family != "dspark" else family for family in FAMILIES
]
"""DSpark has every key that there is; the others go the same ways and take as long."""


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    plugin.register()


def one_line(error: Exception) -> None:
    """Every refusal is one."""
    assert "\n" not in str(error), error


class KeptStates(Extractor):
    """An extractor that runs the verifier once a batch, whichever draft asks."""

    def __init__(self, verifier: T5Gemma2ForConditionalGeneration, layer_ids: tuple[int, ...]) -> None:
        super().__init__(verifier, layer_ids)
        self._kept: dict[tuple[int, ...], VerifierStates] = {}

    def __call__(self, prompts: Any, mask: Any, tokens: Any) -> VerifierStates:
        key = tuple(tokens.flatten().tolist())
        if key not in self._kept:
            self._kept[key] = super().__call__(prompts, mask, tokens)
        return self._kept[key]


@cache
def verifier() -> T5Gemma2ForConditionalGeneration:
    found = T5Gemma2ForConditionalGeneration.from_pretrained(
        VERIFIER, dtype=torch.float32, attn_implementation="sdpa"
    )
    return found.eval()


@cache
def extractor(layer_ids: tuple[int, ...]) -> KeptStates:
    return KeptStates(verifier(), layer_ids)


@cache
def problems() -> list[Sample]:
    """Fresh problems with their worked answers."""
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER)
    return [
        Sample(tokenizer(one.question).input_ids, tokenizer(one.answer, add_special_tokens=False).input_ids)
        for one in take(11, "fresh", 5)
    ]


@cache
def probed() -> list[Sample]:
    """The probe's prompts with the verifier's greedy answers."""
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER)
    ids = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    return [
        Sample(prompt, answer)
        for prompt, answer in zip(ids, greedy_responses(verifier(), ids, TOKENS, len(ids)), strict=True)
    ]


@dataclass
class Demo:
    """One of the bundled drafts, and what was found about its changed copies."""

    family: str
    folder: Path
    refused: int = 0
    untouched: int = 0
    measured: int = 0
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config: Config = json.loads((DEMO / self.family / "config.json").read_text())
        self.tensors: Tensors = load_file(DEMO / self.family / "model.safetensors")
        self.shape = DraftConfig.from_json(self.config)
        self.half = self.acceptance(self.shape, self.tensors, problems(), 7).acceptance_rate / 2  # type: ignore[operator]

    def acceptance(self, shape: DraftConfig, tensors: Tensors, samples: list[Sample], k: int) -> Acceptance:
        """Teacher forced; the tables are those of the file."""
        table = tensors["embed_tokens.weight"].float()
        draft = TrainableDraft(shape, table, tensors["t2d"], tensors["d2t"])
        draft.load_state_dict(
            {name: one.float() if one.is_floating_point() else one for name, one in tensors.items()}
        )
        return serving_acceptance(draft.eval(), extractor(shape.aux_hidden_state_layer_ids), samples, k)

    def judge(self, what: str, shape: DraftConfig, tensors: Tensors, k: int) -> None:
        """Half of the demo's acceptance, or the probe's sentence."""
        self.measured += 1
        rate = self.acceptance(shape, tensors, problems(), k).acceptance_rate
        if rate is not None and rate >= self.half:
            return
        found = self.acceptance(shape, tensors, probed(), k)
        promised = promised_length(DEMO / self.family, k, 7)
        sums = Probe(len(PROMPTS), found.drafts, k * found.drafts, found.accepted_tokens, promised)
        if sums.warning is None:
            self.faults.append(
                f"{what}: acceptance {rate} is below {self.half:.3f}, and the probe says nothing"
            )


def write(demo: Demo, config: Config) -> Path:
    (demo.folder / "config.json").write_text(json.dumps(config))
    return demo.folder


@pytest.fixture
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Demo]:
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(DEMO / request.param / "model.safetensors")
    found = Demo(request.param, folder)
    yield found
    assert not found.faults, "\n".join(found.faults)


@pytest.mark.parametrize("demo", EVERY, indirect=True)
def test_config_mutations(demo: Demo) -> None:
    """vLLM can read every config that is not refused, too."""
    for what, config in config_mutations(demo.config):
        folder = write(demo, config)
        try:
            checkpoints = resolve(None, str(folder), str(VERIFIER), None)
            Identity.of(checkpoints, SETTINGS)
        except (CheckpointError, SettingsError) as error:
            one_line(error)
            demo.refused += 1
            continue
        assert checkpoints.draft is not None and checkpoints.k is not None
        try:
            SpeculatorsConfig.from_pretrained(folder)
        except Exception as error:
            demo.faults.append(f"{what}: vLLM cannot read it: {error!r}")
            continue
        if config.get("sample_from_anchor"):
            continue  # the training code knows no such blocks; the probe alone can tell
        shape = trained_shape(config, checkpoints.draft.draft_vocab_size)
        if (shape, checkpoints.k) == (demo.shape, 7):
            demo.untouched += 1
        else:
            demo.judge(what, shape, demo.tensors, checkpoints.k)
    assert demo.refused > 600 and demo.untouched > 400 and demo.measured > 15


@pytest.mark.parametrize("demo", EVERY, indirect=True)
def test_tensor_mutations(demo: Demo) -> None:
    """Headers are checked before anything is loaded, values while they are."""
    write(demo, demo.config)
    file = demo.folder / "model.safetensors"
    file.unlink()
    for name in tensor_kinds(demo.tensors):
        for what, tensors in tensor_mutations(demo.tensors, name):
            save_file(tensors, file)
            try:
                resolve(None, str(demo.folder), str(VERIFIER), None)
                for _ in checked(tensors.items(), torch.device("cpu"), lambda name, _: never_zero(name)):
                    pass
            except CheckpointError as error:
                one_line(error)
                demo.refused += 1
                continue
            if "confidence_head" in name:
                demo.untouched += 1  # greedy drafting does not read it
            else:
                demo.judge(what, demo.shape, {**demo.tensors, **tensors}, 7)
    assert demo.refused > 150 and demo.measured > 30


def test_verifier_config_mutations(tmp_path: Path) -> None:
    """Refused in one line, or readable for transformers, whose model is the reference: nothing is left to fail late."""
    config: Config = json.loads((VERIFIER / "config.json").read_text())
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(VERIFIER / name)
    refused = 0
    for _, changed in config_mutations(config):
        (tmp_path / "config.json").write_text(json.dumps(changed))
        try:
            checkpoints = resolve(str(tmp_path), None, None, None)
            Identity.of(checkpoints, SETTINGS)
            check_config(checkpoints.verifier)
        except (CheckpointError, SettingsError) as error:
            one_line(error)
            refused += 1
    assert refused > 1000
