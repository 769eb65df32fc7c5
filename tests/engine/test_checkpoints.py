"""What a verifier's files may say about its tied embeddings, and what must be refused (C04)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.harness import Job, engine
from tests.reference.greedy import GreedyReference
from tests.reference.prompts import prompt_ids

pytestmark = pytest.mark.engine

TABLE, ROW = "model.encoder.embed_tokens.weight", "model.encoder.embed_tokens.eoi_embedding"
Tensors = dict[str, torch.Tensor]


def variant(verifier: Path, folder: Path, change: Tensors, drop: tuple[str, ...] = ()) -> Path:
    """A copy of the verifier with some tensors added or replaced and some left out."""
    shutil.copytree(verifier, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: t for name, t in {**tensors, **change}.items() if name not in drop}
    save_file(
        {name: t.clone() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    return folder


def check_logprobs(folder: Path, reference: GreedyReference) -> None:
    """Greedy tokens and the five best log probabilities of each step are the reference's."""
    prompts = [prompt_ids(25, 60), prompt_ids(9, 61)]
    with engine(folder) as running:
        answers = running.run([Job(p, 16, ignore_eos=True, extra={"logprobs": 5}) for p in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == reference.answer(prompt, 16, ignore_eos=True).tokens
        want = reference.logprobs(prompt, answer.tokens[:-1])
        for step, entries in enumerate(answer.logprobs):
            for token, entry in entries.items():
                assert entry.logprob == pytest.approx(want[step, token].item(), abs=1e-3)


def test_only_the_encoders_table_is_stored(verifier: Path, reference: GreedyReference) -> None:
    """The encoder's table alone is in the file, as transformers saves it (C04)."""
    names = load_file(verifier / "model.safetensors").keys()
    assert [name for name in names if "embed_tokens.weight" in name or "lm_head" in name] == [TABLE]
    check_logprobs(verifier, reference)


def test_equal_copies_are_stored(verifier: Path, reference: GreedyReference, tmp_path: Path) -> None:
    """Encoder, decoder and head all in the file, under the longer encoder names too (C04)."""
    tensors = load_file(verifier / "model.safetensors")
    copies = {
        "model.decoder.embed_tokens.weight": tensors[TABLE],
        "model.decoder.embed_tokens.eoi_embedding": tensors[ROW],
        "lm_head.out_proj.weight": tensors[TABLE],
    }
    longer = {
        name.replace("model.encoder.", "model.encoder.text_model."): t
        for name, t in tensors.items()
        if name.startswith("model.encoder.layers.") or name == "model.encoder.norm.weight"
    }
    short = tuple(name.replace(".text_model.", ".") for name in longer)
    check_logprobs(variant(verifier, tmp_path / "b", {**copies, **longer}, drop=short), reference)


@pytest.mark.parametrize("name", ["lm_head.out_proj.weight", "model.decoder.embed_tokens.weight"])
def test_a_different_copy_is_refused(verifier: Path, tmp_path: Path, name: str) -> None:
    """The config ties the embeddings, the file has a head of its own: refused (C04)."""
    table = load_file(verifier / "model.safetensors")[TABLE]
    folder = variant(verifier, tmp_path / "c", {name: table + 0.01})
    with pytest.raises(ValueError, match=name.replace(".", r"\.")), engine(folder):
        pass


@pytest.mark.parametrize(
    "name",
    ["model.decoder.layers.3.self_attn.k_norm.weight", TABLE, "model.encoder.layers.5.mlp.up_proj.weight"],
)
def test_a_missing_tensor_is_refused(verifier: Path, tmp_path: Path, name: str) -> None:
    """Nothing is left as it was initialised (C04)."""
    folder = variant(verifier, tmp_path / "missing", {}, drop=(name,))
    with pytest.raises(ValueError, match="no weights for"), engine(folder):
        pass


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("model.decoder.layers.3.self_attn.q_proj.weight", float("nan"), "not finite"),
        (TABLE, float("-inf"), "not finite"),
        ("model.encoder.layers.5.mlp.up_proj.weight", 0.0, "all zero"),
    ],
)
def test_n06_impossible_weights_are_refused(
    verifier: Path, tmp_path: Path, name: str, value: float, words: str
) -> None:
    """Values that are not finite, and a matrix of zeros, would be served as garbage at 200."""
    tensor = load_file(verifier / "model.safetensors")[name].clone()
    if value:
        tensor[1, 2] = value
    else:
        tensor.zero_()
    folder = variant(verifier, tmp_path / "odd", {name: tensor})
    with pytest.raises(ValueError, match=f"{name}.*{words}".replace(".w", r"\.w")), engine(folder):
        pass


def test_n04_a_stray_file_is_not_loaded(verifier: Path, reference: GreedyReference, tmp_path: Path) -> None:
    """vLLM's own rule loads every safetensors file of the folder, the later over the earlier."""
    folder = variant(verifier, tmp_path / "stray", {})
    tensors = load_file(folder / "model.safetensors")
    save_file({name: torch.randn_like(t) for name, t in tensors.items()}, folder / "zz_backup.safetensors")
    check_logprobs(folder, reference)
