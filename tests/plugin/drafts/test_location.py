"""Folders and hub ids: what is refused at once, what never asks the network, how a hub's failure is worded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from plugin.drafts.checkpoint import CheckpointError, fetch, read_draft, resolve
from plugin.drafts.location import locate
from tests.plugin.drafts.folders import refusal, write_draft, write_pair


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with `verifier` and a `dflash` draft that names it as ../verifier."""
    return write_pair(tmp_path)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the hub was asked")

    for name in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("/models/does-not-exist", "does not exist"),
        ("./nope", "does not exist"),
        ("../nope", "does not exist"),
        ("~/no-such-folder", "does not exist"),
        ("models/a/b", "does not exist, and it is no hub id"),
        ("name-alone", "no hub id"),
    ],
)
def test_missing_paths(where: str, words: str) -> None:
    """Refused at once, and nothing that looks like a path asks the network (D15)."""
    begin = time.monotonic()
    message = refusal(None, None, where, None)
    assert words in message and where in message
    assert time.monotonic() - begin < 5


@pytest.mark.usefixtures("no_network")
def test_files_and_locked_folders(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in place of a folder, and a folder that may not be read (D15)."""
    (pair / "file.txt").write_text("x")
    assert "is a file, not a folder" in refusal(str(pair / "file.txt"), None, None, None)
    may = os.access
    locked = pair / "verifier"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked and may(path, mode))
    assert "cannot be read: permission denied" in refusal(str(locked), None, None, None)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"]
)
def test_pipes_are_refused(pair: Path, name: str) -> None:
    """Whoever opens one waits for a writer that never comes: the start hung. A link to a file is one."""
    for folder in (pair / "verifier", pair / "dflash"):
        kept = folder / f"{name}.kept"
        kept.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"{}")
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        message = refusal(str(pair / "dflash"), None, None, None)
        assert str(folder / name) in message and "pipe, socket or device" in message
        with pytest.raises(CheckpointError, match="pipe, socket or device"):
            read_draft(folder)
        (folder / name).unlink()
        (folder / name).symlink_to(kept)
    assert resolve(str(pair / "dflash"), None, None, None).draft is not None


@pytest.mark.usefixtures("no_network")
def test_local_verifier_in_place_of_a_hub_id(pair: Path) -> None:
    """The draft's config names a hub id, VERIFIER a local copy: nothing is asked of the hub (D16)."""
    draft = write_draft(pair / "hub", verifier="google/t5gemma-2-1b-1b")
    found = resolve(None, str(draft), str(pair / "verifier"), None)
    assert found.draft is not None and found.draft.verifier_name == "google/t5gemma-2-1b-1b"
    assert found.verifier.path == str(pair / "verifier")


def test_bare_names_are_looked_up_in_the_checkpoints_folder(pair: Path) -> None:
    found = resolve("dflash", None, None, None, checkpoints_dir=pair)
    assert found.draft is not None and found.draft.path == str(pair / "dflash")


class _Reply:
    status_code = 403


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.LocalEntryNotFoundError("a\nb"), "cannot be reached"),
        (errors.OfflineModeIsEnabled("x"), "HF_HUB_OFFLINE is set"),
        (RuntimeError("first\nsecond"), "first"),
    ],
)
def test_hub_failures_are_one_line(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, unreachable or something else: the id and a cause, on one line (D16)."""

    def fail(*args: object, **kwargs: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    message = refusal("google/t5gemma-2-1b-1b", None, None, None)
    assert words in message and "google/t5gemma-2-1b-1b" in message


def test_gated_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """A denied download is named as a matter of licence or token, and the token is not shown (D16)."""

    def fail(*args: object, **kwargs: object) -> str:
        error = RuntimeError("Bearer hf_secret")
        error.response = _Reply()  # type: ignore[attr-defined]
        raise error

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    message = refusal("google/t5gemma-2-1b-1b", None, None, None)
    assert "licence" in message and "HF_TOKEN" in message and "hf_secret" not in message


def test_offline_with_the_real_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE with an empty cache says so and the id, at once (D16)."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    begin = time.monotonic()
    message = refusal("google/t5gemma-2-1b-1b", None, None, None)
    assert "HF_HUB_OFFLINE is set" in message and "google/t5gemma-2-1b-1b" in message
    assert time.monotonic() - begin < 5


def test_fetch_makes_hub_ids_local(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub draft is resolved by its config alone; its weights are checked when they have been fetched."""
    folders = {
        "owner/draft": write_draft(pair / "cached", verifier="owner/verifier"),
        "owner/verifier": pair / "verifier",
    }
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, name: str(folders[repo] / name))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo, **kwargs: str(folders[repo]))
    monkeypatch.chdir(pair)
    (pair / "cached" / "model.safetensors").rename(pair / "kept")
    found = resolve("owner/draft", None, None, None)
    assert found.draft is not None
    assert (found.draft.path, found.draft.name, found.verifier.path) == (
        "owner/draft",
        "owner/draft",
        "owner/verifier",
    )
    with pytest.raises(CheckpointError, match="cannot be read"):
        fetch(found)
    (pair / "kept").rename(pair / "cached" / "model.safetensors")
    local = fetch(found)
    assert local.draft is not None
    assert (local.draft.path, local.draft.name) == (str(pair / "cached"), "owner/draft")
    assert local.verifier.path == str(pair / "verifier")


def test_relative_verifier_of_a_hub_draft(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, name: str(pair / "dflash" / name))
    assert "relative '../verifier'; give VERIFIER" in refusal("owner/draft", None, None, None)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("my-draft/checkpoint_best", "my-draft"),
        ("my-draft/3", "my-draft-3"),
        ("my-draft/2.150", "my-draft-2.150"),
        ("my-draft", "my-draft"),
        ("t5gemma-2-1b-1b.dflash-dev", "t5gemma-2-1b-1b.dflash-dev"),
    ],
)
def test_a_checkpoint_of_a_run_is_called_after_the_run(tmp_path: Path, folder: str, name: str) -> None:
    """`checkpoint_best` would be the model id of every draft (N39)."""
    (tmp_path / folder).mkdir(parents=True)
    assert locate(str(tmp_path / folder)).name == name
