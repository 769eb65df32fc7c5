"""Arms as they are written, and the servers' settings that they mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.bench.arms import Arm, given_arms, named_drafts, own_arms, split_name
from app.bench.errors import BenchError
from tests.plugin.drafts.folders import write_draft, write_pair


def test_names() -> None:
    assert [split_name(text) for text in ("dflash:7", "dflash:3:short", "dflash", "a:b", "hub/x:y:3")] == [
        ("dflash", 7),
        ("dflash", 3),
        ("dflash", None),
        ("a:b", None),
        ("hub/x:y", 3),
    ]


def test_arms_become_settings(tmp_path: Path) -> None:
    folder = str(write_pair(tmp_path) / "dflash")
    verifier, three, own, short = own_arms("verifier, mine:3,mine,mine:3:short", {"mine": folder}, None)
    unset = {"K": "", "SHORT_BLOCK": ""}
    alone = {"MODEL": folder, "DRAFT": "none", "VERIFIER": "", "ADAPTIVE_VERIFICATION": ""}
    assert dict(verifier.settings) == alone | unset
    assert (verifier.family, verifier.k) == (None, None)
    assert dict(three.settings) == {"MODEL": "", "DRAFT": folder, "VERIFIER": "", **unset, "K": "3"}
    assert dict(short.settings) == dict(three.settings) | {"SHORT_BLOCK": "true"}
    assert (short.family, short.k, short.slug) == ("dflash", 3, "mine_3_short")
    assert (three.name, three.family, three.k, three.slug) == ("mine:3", "dflash", 3, "mine_3")
    assert (own.k, dict(own.settings)["K"]) == (7, "")


def test_a_verifier_of_one_s_own(tmp_path: Path) -> None:
    folder, verifier = write_pair(tmp_path), str(tmp_path / "verifier")
    alone, draft = own_arms("verifier,mine", {"mine": str(folder / "dflash")}, verifier)
    assert dict(alone.settings)["MODEL"] == verifier and dict(draft.settings)["VERIFIER"] == verifier


def test_a_path_is_a_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths with spaces and umlauts, and relative to this folder, not to the server's (D13)."""
    write_pair(tmp_path / "meine Übung")
    monkeypatch.chdir(tmp_path)
    (arm,) = own_arms("meine Übung/dflash:2", {}, None)
    assert dict(arm.settings)["DRAFT"] == str(tmp_path / "meine Übung" / "dflash")


def test_replaced_weights_make_another_arm(tmp_path: Path) -> None:
    folder = write_pair(tmp_path) / "dflash"
    (before,) = own_arms("mine:3", {"mine": str(folder)}, None)
    assert own_arms("mine:3", {"mine": str(folder)}, None) == [before]
    os.utime(folder / "model.safetensors", (1, 1))
    (after,) = own_arms("mine:3", {"mine": str(folder)}, None)
    assert before.identity() != after.identity()


def test_wrong_arms(tmp_path: Path) -> None:
    drafts = {"mine": str(write_pair(tmp_path) / "dflash")}
    for names, message in (
        ("mine:8", r"arm mine:8: K=8 does not fit .*block_size 8 allows 1 \.\.\. 7"),
        ("mine,mine", "arm mine is named twice"),
        ("mine:short", "arm mine:short: say how short, as in mine:3:short"),
        (" , ", "--arms names no arm"),
    ):
        with pytest.raises(BenchError, match=message):
            own_arms(names, drafts, None)
    write_draft(
        tmp_path / "other", change=lambda config: config.update(aux_hidden_state_layer_ids=[0, 2, 99])
    )
    with pytest.raises(BenchError, match=r"arm x: .*aux_hidden_state_layer_ids"):
        own_arms("x", {"x": str(tmp_path / "other")}, None)


def test_given_servers() -> None:
    first, second = given_arms(["dflash:7=http://a:1/v1/", "http://localhost:8000"])
    assert first == Arm("dflash:7", "dflash", 7, "http://a:1")
    assert (second.name, second.url, second.family) == ("localhost:8000", "http://localhost:8000", None)
    for text in ("x=ftp://a", "x=", "nothing"):
        with pytest.raises(BenchError, match="--url"):
            given_arms([text])


def test_named_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert named_drafts(["a=here", "b=me/hub"]) == {"a": str(tmp_path / "here"), "b": "me/hub"}
    for text in ("a", "=x", "verifier=x", "a:1=x"):
        with pytest.raises(BenchError, match="--draft"):
            named_drafts([text])
