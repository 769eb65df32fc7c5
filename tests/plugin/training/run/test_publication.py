"""What strangers get: the verifier's name in the draft, the card, the upload (N39)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import ModelCard as HubCard

from plugin.training.draft.model import TrainableDraft
from plugin.training.run.folder import RunFolder
from plugin.training.run.model_card import ModelCard
from plugin.training.run.publication import Publication
from plugin.training.run.trainer import TrainingState
from plugin.training.settings import DraftSettings, LossSettings

DATA = {
    "sources": [
        {"source": "magicoder", "dataset": "ise-uiuc/Magicoder", "rows": 100, "taken": 50},
        {"source": "mine.jsonl", "file": "mine.jsonl", "rows": 9, "taken": 9},
    ],
    "training_samples": 53,
    "validation_samples": 6,
    "responses": "verifier",
    "cut": {"prompts": 4, "responses": 7, "side": "end"},
}


def _asked(verifier: str, **flags: object) -> Publication:
    given = {"verifier_name": None, "license": None, "push_to_hub": None, "private": False}
    return Publication.asked(argparse.Namespace(**{**given, **flags}), verifier)


def test_a_folder_is_named_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`speculators` takes a relative one from the working directory, serving from the draft."""
    (tmp_path / "verifier").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _asked("verifier").verifier == str(tmp_path / "verifier")
    assert _asked("owner/verifier").verifier == "owner/verifier"
    assert _asked("verifier", verifier_name="../verifier").verifier == "../verifier"


def test_the_licence_is_the_verifiers(tmp_path: Path) -> None:
    assert _asked(str(tmp_path)).license is None
    card = tmp_path / "README.md"
    card.write_text("no front matter")
    assert _asked(str(tmp_path)).license is None
    card.write_text("---\nlicense: gemma\n---\n# It")
    assert _asked(str(tmp_path)).license == "gemma"
    assert _asked(str(tmp_path), license="mit").license == "mit"


def test_nothing_is_uploaded_that_names_a_folder_here(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--push-to-hub: nobody else has the verifier .*--verifier-name"):
        _asked(str(tmp_path), push_to_hub="me/draft")
    assert _asked(str(tmp_path), push_to_hub="me/draft", verifier_name="me/verifier").repository == "me/draft"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Takes the hub's place; what was asked of it."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Api:
        def create_repo(self, repository: str, **options: Any) -> None:
            asked.append((repository, options))

        def upload_folder(self, **options: Any) -> str:
            if options["repo_id"] == "me/gone":
                raise RuntimeError("401\nno token")
            asked.append(("upload", options))
            return "https://hub/commit/1"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return asked


def test_the_best_checkpoint_is_uploaded_whole(tmp_path: Path, hub: list[tuple[str, dict[str, Any]]]) -> None:
    folder = RunFolder(tmp_path / "run")
    (folder.path / "3").mkdir()
    (folder.path / "checkpoint_best").symlink_to("3")
    Publication("owner/verifier").push(folder)
    assert hub == []
    Publication("owner/verifier", None, "me/draft", True).push(folder)
    assert hub[0] == ("me/draft", {"private": True, "exist_ok": True})
    assert hub[1][1] == {"repo_id": "me/draft", "folder_path": folder.path / "3", "commit_message": "Epoch 3"}
    with pytest.raises(
        OSError, match=r"^--push-to-hub me/gone: .*run/3 was not uploaded: RuntimeError: 401 no token$"
    ):
        Publication("owner/verifier", None, "me/gone").push(folder)


@pytest.mark.parametrize("family", ["dflash", "dspark"])
def test_the_card_has_what_a_stranger_needs(
    make_draft: Callable[..., TrainableDraft], tmp_path: Path, family: str
) -> None:
    """Read back by the hub's own reader: licence, base model, data; in words: responses and limits."""
    settings = DraftSettings(loss=LossSettings(terms=(("lk_hybrid", 1.0),)), short_blocks=0.25)
    metrics = {"loss_epoch": 0.25}
    card = ModelCard(
        make_draft(family).config, "owner/verifier", settings, TrainingState(5, 10, 60), metrics, DATA, "gemma", 2
    )  # fmt: skip
    (tmp_path / "README.md").write_text(card.text())
    data = HubCard.load(tmp_path / "README.md").data
    assert (data.license, data.base_model, data.datasets) == (
        "gemma",
        "owner/verifier",
        ["ise-uiuc/Magicoder"],
    )
    assert {"speculative-decoding", family} <= set(data.tags)
    text = card.text()
    for words in (
        "| magicoder | 50 of 100 |", "| responses | the verifier's |", "| training, validation samples | 53, 6 |",
        "| end cut | 4 prompts, 7 responses |",
        "| packed rows a step | 2 |", "| loss | 1 lk_hybrid |", "| blocks drawn shorter | 25% |",
        "| loss_epoch | 0.25000 |",
        "## Limits", "It serves owner/verifier and no other model", "cut at 2048 tokens and responses at 1024",
        "It can say 40 of 64 tokens",
    ):  # fmt: skip
        assert words in text, words
    assert "It learned the data's responses" not in text and "acceptance can fall" not in text
    assert ("| Markov head | vanilla, rank 8 |" in text) == (family == "dspark")


def test_the_card_of_a_verifier_that_nobody_else_has(make_draft: Callable[..., TrainableDraft]) -> None:
    settings = DraftSettings(whole_blocks=True)
    text = ModelCard(
        make_draft("dflare").config, "/home/me/verifier", settings, TrainingState(0, 1, 1), {}, {}
    ).text()
    assert "base_model" not in text and "/home/me" not in text and "# DFlare draft for verifier" in text
    assert "below K = 7, acceptance can fall" in text and "not trained on the last tokens" in text
    assert "It learned the data's responses" in text and "without a validation set" in text
