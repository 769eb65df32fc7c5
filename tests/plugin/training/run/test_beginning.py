"""How a run begins: the shape that the flags ask for, the vocabulary of a file, and the facts of a run."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from plugin.training.data.samples import Sample
from plugin.training.draft.checkpoint import DraftError, load_draft, save_draft
from plugin.training.draft.config import DraftConfig
from plugin.training.draft.model import TrainableDraft
from plugin.training.flags import SHAPE_FLAGS, family_arguments
from plugin.training.run.beginning import begun_draft, build_trainer, run_facts
from plugin.training.run.folder import Checkpoint, RunError
from plugin.training.settings import DraftSettings, LossSettings
from plugin.training.verifier.frozen_verifier import FrozenVerifier

DEMO = Path(__file__).parents[4] / "plugin" / "demo"
GIVEN = ["--verifier", "v", "--data", "d", "--out", "o"]


@pytest.fixture(scope="module")
def verifier() -> FrozenVerifier:
    return FrozenVerifier.load(str(DEMO / "verifier"), torch.device("cpu"))


def _arguments(family: str, words: str = "") -> argparse.Namespace:
    return family_arguments(family, [*GIVEN, *words.split()])


def _shape(verifier: FrozenVerifier, family: str, words: str) -> DraftConfig:
    found = begun_draft(_arguments(family, words), verifier, None)
    assert isinstance(found, DraftConfig)
    return found


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("", {"num_hidden_layers": 2, "block_size": 8, "mask_token_id": 4, "sample_from_anchor": False}),
        ("--layers 1 --mlp-width 96", {"num_hidden_layers": 1, "intermediate_size": 96}),
        ("--aux-layers 1,5 --draft-vocab 99", {"aux_hidden_state_layer_ids": (1, 5), "draft_vocab_size": 99}),
        ("--sliding-layers 1 --sliding-window 32", {"sliding_layers": (1,), "sliding_window": 32}),
        ("--sliding-layers 0 --sliding-non-causal", {"sliding_window_non_causal": True}),
        ("--markov-head rnn --markov-rank 9", {"markov_head_type": "rnn", "markov_rank": 9}),
        ("--no-confidence-head", {"enable_confidence_head": False}),
        ("--confidence-without-markov", {"confidence_head_with_markov": False}),
        (
            "--sample-from-anchor --block-size 7",
            {"sample_from_anchor": True, "block_size": 7, "draft_length": 7},
        ),
    ],
)
def test_the_flags_shape_the_draft(verifier: FrozenVerifier, words: str, fields: dict[str, Any]) -> None:
    """And the config that is written says so to whoever reads it."""
    found = _shape(verifier, "dspark", words)
    assert {name: getattr(found, name) for name in fields} == fields
    assert DraftConfig.from_json(json.loads(json.dumps(found.to_json("v", None, "bfloat16")))) == found


@pytest.mark.parametrize(
    ("family", "words", "said"),
    [
        ("dflash", "--sliding-layers 5", "sliding layers: 5 is none of the draft's 2 layers"),
        ("dflash", "--aux-layers 3,9", r"aux layers: \[3, 9\]"),
        ("dspark", "--vocab-file nowhere.json", "nowhere.json: no vocabulary can be read"),
    ],
)
def test_what_cannot_be_is_named(verifier: FrozenVerifier, family: str, words: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _shape(verifier, family, words)


def test_only_dspark_has_its_flags() -> None:
    with pytest.raises(SystemExit):
        _arguments("dflash", "--sample-from-anchor")


@pytest.mark.parametrize("words", ["--loss mse", "--schedule step", "--markov-head big", '--loss {"ce":-1}'])
def test_unknown_choices_are_wrong_usage(words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        _arguments("dspark", words)
    assert ended.value.code == 2


def test_a_vocabulary_of_a_file_is_the_drafts(verifier: FrozenVerifier, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(json.dumps(list(range(30, 90, 2))))
    arguments = _arguments("dflash", f"--vocab-file {tmp_path}/tokens.json")
    shape = begun_draft(arguments, verifier, None)
    assert isinstance(shape, DraftConfig) and shape.draft_vocab_size == 30
    settings = DraftSettings(epochs=1, precision="float32")
    trainer = build_trainer(
        shape, verifier, settings, [Sample([2, 9], [31, 33, 1])], vocabulary=arguments.vocab_file
    )
    assert trainer.draft.to_target(torch.arange(30)).tolist() == list(range(30, 90, 2))


def test_a_draft_that_is_there_keeps_its_shape(verifier: FrozenVerifier, tmp_path: Path) -> None:
    """Every flag that asks for another is named; those that ask for the same are not."""
    draft = load_draft(DEMO / "dspark")
    save_draft(tmp_path, draft, "v", None)
    newest = Checkpoint(tmp_path, 0, None)
    config = draft.config
    same = f"--layers {config.num_hidden_layers} --block-size 8 --markov-rank {config.markov_rank}"
    assert begun_draft(_arguments("dspark", same), verifier, newest).config == config  # type: ignore[union-attr]
    others = {
        "num_hidden_layers": "9", "intermediate_size": "9", "aux_hidden_state_layer_ids": "0", "draft_vocab_size": "9",
        "block_size": "9", "mask_token_id": "9", "sliding_layers": "0", "sliding_window": "9", "markov_rank": "9",
        "sliding_window_non_causal": "", "markov_head_type": "rnn", "enable_confidence_head": "",
        "confidence_head_with_markov": "", "sample_from_anchor": "",
    }  # fmt: skip
    assert others.keys() == SHAPE_FLAGS.keys()
    for field, value in others.items():
        flag = SHAPE_FLAGS[field]
        with pytest.raises(RunError, match=f"^{flag}: .* here, .* in {tmp_path}"):
            begun_draft(_arguments("dspark", f"{flag} {value}"), verifier, newest)
    with pytest.raises(RunError, match=r"^--vocab-file: "):
        begun_draft(_arguments("dspark", f"--vocab-file x.json --from {tmp_path}"), verifier, None)


def test_facts_leave_out_what_changes_nothing(verifier: FrozenVerifier) -> None:
    """And say the loss as it is, also where it is the family's own."""
    own = run_facts(DraftSettings(), _arguments("dspark"), verifier, 1)
    assert own["loss.terms"] == {"ce": 0.1, "tv": 0.9} and own["processes"] == 1
    assert not {"extractor_batch", "gradient_checkpointing"} & own.keys()
    loss = LossSettings(terms=(("ce", 0.1), ("tv", 0.9)))
    written = run_facts(
        DraftSettings(loss=loss, gradient_checkpointing=True), _arguments("dspark"), verifier, 1
    )
    assert written == own == json.loads(json.dumps(own))


def test_a_draft_goes_on_where_its_verifier_was_trained_further(
    verifier: FrozenVerifier, tmp_path: Path
) -> None:
    """With --new-verifier alone, and at a new run's beginning alone; its own layers stay."""
    shutil.copytree(DEMO / "dflash", tmp_path / "old")
    weights = tmp_path / "old" / "model.safetensors"
    tensors = load_file(weights)
    save_file(
        {**tensors, "embed_tokens.weight": tensors["embed_tokens.weight"] * 2}, weights, {"format": "pt"}
    )
    words = f"--from {tmp_path / 'old'}"
    with pytest.raises(DraftError, match=r"another one \(--from with --new-verifier"):
        begun_draft(_arguments("dflash", words), verifier, None)
    draft = begun_draft(_arguments("dflash", f"{words} --new-verifier"), verifier, None)
    assert isinstance(draft, TrainableDraft) and torch.equal(draft.embed_tokens.weight, verifier.table)
    assert torch.equal(draft.fc.weight, tensors["fc.weight"].float())
    newest = Checkpoint(tmp_path / "old", 1, None)
    with pytest.raises(DraftError, match="another one"):
        begun_draft(_arguments("dflash", f"{words} --new-verifier"), verifier, newest)
