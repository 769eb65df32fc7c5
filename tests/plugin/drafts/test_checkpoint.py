"""Which checkpoints MODEL, DRAFT, VERIFIER and K mean, and which pairs are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from plugin.drafts import checkpoint
from plugin.drafts.checkpoint import Checkpoints, resolve
from plugin.drafts.families import FAMILIES
from tests.plugin.drafts.folders import refusal, write_draft, write_pair, write_verifier


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with `verifier` and a `dflash` draft that names it as ../verifier."""
    return write_pair(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_draft_alone_names_its_verifier(tmp_path: Path, family: str) -> None:
    """The family and class are the checkpoint's own (B29)."""
    write_verifier(tmp_path / "verifier")
    found = resolve(str(write_draft(tmp_path / family, family)), None, None, None)
    assert found.draft is not None
    assert (found.draft.family, found.k, found.draft.default_k) == (family, 7, 7)
    assert found.draft.architecture.lower() == f"{family}draftmodel"
    assert found.verifier.path == str(tmp_path / "verifier")
    assert (found.verifier.num_decoder_layers, found.verifier.sliding_window) == (6, 16)


def test_ways_to_name_a_pair(pair: Path) -> None:
    draft, verifier = str(pair / "dflash"), str(pair / "verifier")
    expected = resolve(draft, None, None, None)
    assert resolve(verifier, draft, None, None) == expected
    assert resolve(None, draft, None, None) == expected
    assert resolve(None, draft, verifier, None) == expected
    assert resolve(draft, None, verifier, None) == expected


def test_verifier_alone(pair: Path) -> None:
    draft, verifier = str(pair / "dflash"), str(pair / "verifier")
    expected = Checkpoints(resolve(draft, None, None, None).verifier, None, None)
    for ask in [
        (verifier, None, None),
        (None, None, verifier),
        (draft, "none", None),
        (verifier, "none", None),
    ]:
        assert resolve(*ask, None) == expected
    assert resolve(None, " None ", verifier, None) == expected


def test_bundled_demo_when_nothing_is_asked(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable at all is the demo, with `none` its verifier alone (D19)."""
    monkeypatch.setattr(checkpoint, "DEMO", pair)
    assert resolve(None, None, None, None) == resolve(str(pair / "dflash"), None, None, None)
    assert resolve(None, "none", None, None).draft is None


@pytest.mark.parametrize("family", FAMILIES)
def test_bundled_demo_is_sound(family: str) -> None:
    found = resolve(str(checkpoint.DEMO / family), None, None, None)
    assert found.draft is not None
    assert (found.draft.family, found.k) == (family, 7)
    assert found.verifier.path == str(checkpoint.DEMO / "verifier")


def test_k_override(pair: Path) -> None:
    """K=3 of a checkpoint whose own is 7; unset gives 7 (B27)."""
    draft = str(pair / "dflash")
    assert resolve(draft, None, None, 3).k == 3
    assert resolve(draft, None, None, 7).k == 7
    assert resolve(draft, None, None, None).k == 7
    assert "block_size 8 allows 1 ... 7" in refusal(draft, None, None, 8)
    assert "K=0" in refusal(draft, None, None, 0)
    assert "no draft" in refusal(str(pair / "verifier"), None, None, 3)


def test_family_is_never_read_from_a_name(tmp_path: Path) -> None:
    """The folder's name says another family than the config (B30)."""
    write_verifier(tmp_path / "verifier")
    for family, name in [("dflare", "eagle3-dspark-medusa-test"), ("dspark", "dflash")]:
        found = resolve(str(write_draft(tmp_path / name, family)), None, None, None)
        assert found.draft is not None and found.draft.family == family


def test_two_drafts_or_two_verifiers(pair: Path) -> None:
    other_draft, other_verifier = write_draft(pair / "dspark", "dspark"), write_verifier(pair / "other")
    message = refusal(str(pair / "dflash"), str(other_draft), None, None)
    assert "both drafts" in message and str(pair / "dflash") in message and str(other_draft) in message
    assert "two verifiers" in refusal(str(pair / "verifier"), None, str(other_verifier), None)
    assert "is a draft" in refusal(None, str(other_draft), str(pair / "dflash"), None)
    assert "no Speculators draft" in refusal(None, str(other_verifier), None, None)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_size", 16, "transformer_layer_config.hidden_size is 8, but"),
        ("vocab_size", 48, "transformer_layer_config.vocab_size is 40, but"),
        ("num_hidden_layers", 4, "aux_hidden_state_layer_ids has 4, but"),
    ],
)
def test_wrong_pairs(pair: Path, key: str, value: int, words: str) -> None:
    """A draft made for another verifier: both files, the key and both values."""

    def change(config: dict[str, Any]) -> None:
        for stack in (config["decoder"], config["encoder"]["text_config"]):
            stack[key] = value
            stack["layer_types"] = stack["layer_types"][: stack["num_hidden_layers"]]

    wrong = write_verifier(pair / "wrong", change)
    message = refusal(None, str(pair / "dflash"), str(wrong), None)
    assert words in message and str(pair / "dflash" / "config.json") in message
    assert f"{wrong}/config.json: decoder.{key} is {value}" in message


def test_target_hidden_size_of_another_verifier(pair: Path) -> None:
    draft = write_draft(pair / "wide", change=lambda config: config.update(target_hidden_size=64))
    assert "target_hidden_size is 64" in refusal(str(draft), None, None, None)


def test_another_model_as_verifier(pair: Path) -> None:
    other = write_verifier(pair / "bart", lambda config: config.update(architectures=["BartModel"]))
    message = refusal(str(other), None, None, None)
    assert "BartModel" in message and "T5Gemma2ForConditionalGeneration" in message
    draft = write_draft(
        pair / "qwen",
        change=lambda config: config["speculators_config"]["verifier"].update(
            architectures=["Qwen3ForCausalLM"]
        ),
    )
    assert "speculators_config.verifier.architectures" in refusal(str(draft), None, None, None)


@pytest.mark.parametrize("name", ["my drafts/über (1)/dflash", "dflash///", "link", "a.b-c"])
def test_unusual_paths(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces, umlauts, trailing slashes and links; the name is never empty (D13, D14)."""
    write_verifier(tmp_path / "verifier")
    real = write_draft(tmp_path / "real", verifier=str(tmp_path / "verifier"))
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(real, str(place).rstrip("/")) if name == "link" else write_draft(
        place, verifier=str(tmp_path / "verifier")
    )
    found = resolve(f"{tmp_path}/{name}", None, None, None).draft
    assert found is not None
    assert found.name == place.name != ""
    assert found.path == str(tmp_path / name.rstrip("/"))


def test_dot_and_tilde(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.` has the folder's name, `~` is the home folder (D14)."""
    monkeypatch.chdir(pair / "dflash")
    monkeypatch.setenv("HOME", str(pair))
    for where in (".", "~/dflash", "../dflash/"):
        found = resolve(where, None, None, None).draft
        assert found is not None and (found.name, found.path) == ("dflash", str(pair / "dflash"))


def test_verifier_without_a_tokenizer(tmp_path: Path) -> None:
    verifier = write_verifier(tmp_path / "verifier")
    (verifier / "tokenizer.json").rename(verifier / "tokenizer.model")
    resolve(str(verifier), None, None, None)
    (verifier / "tokenizer.model").unlink()
    assert f"{verifier}/tokenizer.json: does not exist, nor does tokenizer.model" in refusal(
        str(verifier), None, None, None
    )


def test_n08_a_tokenizer_folder(tmp_path: Path) -> None:
    """Each setting is named, and what the folder is instead (N08)."""
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").touch()
    where = str(tmp_path / "words")
    for setting, ask in (
        ("MODEL", (where, None, None)),
        ("DRAFT", (None, where, None)),
        ("VERIFIER", (None, None, where)),
    ):
        message = refusal(*ask, None)
        assert (
            message.startswith(f"{setting}: {where}/config.json: cannot be read")
            and "holds a tokenizer" in message
        )


def test_n08_folders_of_folders_and_of_nothing(pair: Path) -> None:
    assert "checkpoints are in its sub-folders dflash, verifier" in refusal(str(pair), None, None, None)
    (pair / "empty").mkdir()
    assert "holds no checkpoint" in refusal(None, str(pair / "empty"), None, None)


def test_n08_model_and_draft_exchanged(pair: Path) -> None:
    draft, verifier = str(pair / "dflash"), str(pair / "verifier")
    message = refusal(draft, verifier, None, None)
    assert message.startswith(f"{verifier}/config.json: DRAFT is no Speculators draft but a verifier")
    assert f"MODEL {draft} is a draft: exchange MODEL and DRAFT" in message
    assert "give it as MODEL or VERIFIER" in refusal(None, verifier, None, None)
    assert f"VERIFIER: {draft} is a draft, not a verifier; give it as DRAFT" in refusal(
        verifier, None, draft, None
    )


def test_n08_a_verifier_that_is_absent(pair: Path) -> None:
    """The setting, or the key of the draft's config that named it."""
    draft = str(pair / "dflash")
    assert refusal(draft, None, str(pair / "gone"), None).startswith(f"VERIFIER: {pair}/gone: the path")
    (pair / "verifier").rename(pair / "elsewhere")
    message = refusal(draft, None, None, None)
    assert message.startswith(
        f"{draft}/config.json: speculators_config.verifier.name_or_path: {pair}/verifier"
    )
    assert "does not exist" in message and "give VERIFIER" in message
