"""A draft's weights against its config, by header: cut files, pointers, absent or odd tensors, bad vocabulary
maps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from plugin.drafts.checkpoint import CheckpointError, read_draft, read_verifier
from plugin.drafts.families import FAMILIES
from tests.plugin.drafts.folders import Arrays, draft_arrays, write_draft, write_verifier, zeros


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_draft(folder)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message
    return message


@pytest.mark.parametrize("family", FAMILIES)
def test_published_layout_is_accepted(tmp_path: Path, family: str) -> None:
    facts = read_draft(write_draft(tmp_path / "d", family))
    assert (facts.has_own_head, facts.has_own_embedding) == (True, True)


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("gated", {"gate_proj.weight": (3, 11), "gate_proj.bias": (3,)}),
        ("rnn", {"joint_proj.weight": (9, 14), "joint_proj.bias": (9,)}),
    ],
)
def test_markov_heads(tmp_path: Path, kind: str, extra: dict[str, tuple[int, ...]]) -> None:
    def weights(arrays: Arrays) -> None:
        arrays.update({f"markov_head.{name}": zeros(*shape) for name, shape in extra.items()})

    def change(config: dict[str, Any]) -> None:
        config["markov_head_type"] = kind

    assert read_draft(write_draft(tmp_path / "d", "dspark", change, weights)).markov_head_type == kind
    assert "markov_head" in refusal(write_draft(tmp_path / "e", "dspark", change))
    assert "markov_head" in refusal(write_draft(tmp_path / "f", "dspark", None, weights))


def test_full_vocabulary_without_own_head(tmp_path: Path) -> None:
    """B41: a full-vocabulary draft shares the verifier's head; a reduced one must bring its own."""

    def change(config: dict[str, Any]) -> None:
        config["draft_vocab_size"] = 40

    def weights(arrays: Arrays) -> None:
        for name in ("lm_head.weight", "d2t", "t2d", "embed_tokens.weight"):
            arrays.pop(name)

    facts = read_draft(write_draft(tmp_path / "full", change=change, weights=weights))
    assert (facts.has_own_head, facts.has_own_embedding) == (False, False)
    assert "lm_head.weight, d2t, t2d" in refusal(write_draft(tmp_path / "cut", weights=weights))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (lambda a: a.pop("layers.1.mlp.up_proj.weight"), "lacks tensors"),
        (lambda a: a.update({"layers.2.mlp.up_proj.weight": zeros(16, 8)}), "not of a DFlashDraftModel"),
        (lambda a: a.update({"markov_head.markov_w1.weight": zeros(40, 3)}), "markov_head.markov_w1.weight"),
        (
            lambda a: a.update({"fc.weight": zeros(8, 16)}),
            "fc.weight has shape [8, 16]; config.json says [8, 24]",
        ),
        (lambda a: a.update({"norm.weight": np.zeros(8, np.int64)}), "norm.weight has dtype I64"),
        (lambda a: a.update({"t2d": np.zeros(40, np.float32)}), "t2d has dtype F32; must be BOOL"),
    ],
)
def test_wrong_tensors(tmp_path: Path, weights: Callable[[Arrays], object], words: str) -> None:
    """D05: weights absent from, or unexpected by, the class that the config names."""
    assert words in refusal(write_draft(tmp_path / "d", weights=weights))


def test_dspark_weights_under_a_dflash_config(tmp_path: Path) -> None:
    """D05: the Markov tensors contradict the family."""
    folder = write_draft(tmp_path / "d")
    save_file(draft_arrays("dspark"), folder / "model.safetensors")
    assert "markov_head" in refusal(folder)


def set_d2t(index: int, value: int) -> Callable[[Arrays], object]:
    return lambda arrays: arrays["d2t"].__setitem__(index, value)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (set_d2t(5, 35), "d2t[5] is 35, which maps draft token 5 to target id 40; must be 0 ... 39"),
        (set_d2t(3, -4), "d2t[3] is -4, which maps draft token 3 to target id -1"),
        (set_d2t(2, 0), "d2t[2] maps draft token 2 to target id 2; d2t and t2d contradict"),
        (set_d2t(1, 0), "d2t[0] maps draft token 0"),
        (
            lambda a: a["t2d"].__setitem__(0, True),
            "t2d has 13 true entries; config.json's draft_vocab_size is 12",
        ),
    ],
)
def test_vocabulary_maps(tmp_path: Path, weights: Callable[[Arrays], object], words: str) -> None:
    """D09: an impossible target id, or a count that is not the draft vocabulary's."""
    assert words in refusal(write_draft(tmp_path / "d", weights=weights))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[: len(data) // 2], "incomplete"),
        (lambda data: data[:-1], "incomplete"),
        (lambda data: b"", "incomplete"),
        (lambda data: b"\xff" * 8 + data[8:], "incomplete or no safetensors"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64, "pointer file"),
        (lambda data: data[:8] + b"!" + data[9:], "no safetensors file"),
    ],
)
def test_damaged_files(tmp_path: Path, damage: Callable[[bytes], bytes], words: str) -> None:
    """D11: a cut, empty or foreign file, or a pointer to one, in plain words with its path."""
    for folder, read in (
        (write_draft(tmp_path / "d"), read_draft),
        (write_verifier(tmp_path / "v"), read_verifier),
    ):
        file = folder / "model.safetensors"
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(CheckpointError) as caught:
            read(folder)
        assert words in str(caught.value) and str(file) in str(caught.value)


def test_shards(tmp_path: Path) -> None:
    """D11: an index reads all its shards; a missing one is named."""
    folder = write_draft(tmp_path / "d")
    arrays = draft_arrays()
    (folder / "model.safetensors").unlink()
    parts = {
        "a.safetensors": dict(list(arrays.items())[::2]),
        "b.safetensors": dict(list(arrays.items())[1::2]),
    }
    for name, part in parts.items():
        save_file(part, folder / name)
    names = {tensor: name for name, part in parts.items() for tensor in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert read_draft(folder).has_own_head
    (folder / "b.safetensors").unlink()
    assert "names b.safetensors, which is missing; the download is incomplete" in refusal(folder)


def test_no_weights_at_all(tmp_path: Path) -> None:
    folder = write_draft(tmp_path / "d")
    (folder / "model.safetensors").unlink()
    assert "model.safetensors: cannot be read: No such file" in refusal(folder)


def test_verifier_embedding(tmp_path: Path) -> None:
    folder = write_verifier(tmp_path / "v")
    assert read_verifier(folder).dtype == "float32"
    save_file({"model.encoder.embed_tokens.weight": zeros(39, 8)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"shape \[39, 8\].*\[40, 8\]"):
        read_verifier(folder)
    save_file({"lm_head.weight": zeros(40, 8)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="no embed_tokens"):
        read_verifier(folder)
