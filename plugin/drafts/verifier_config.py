"""A T5Gemma 2 checkpoint's config.json as facts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from plugin.drafts.facts import CheckpointError, VerifierFacts
from plugin.drafts.families import VERIFIER_ARCHITECTURE
from plugin.drafts.fields import Fields
from plugin.drafts.safetensors_header import Tensor, read_tensors

_TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def verifier_facts(config: Fields, path: str, name: str) -> VerifierFacts:
    """Facts of a verifier's config; CheckpointError naming the key when it is another model or incomplete."""
    if VERIFIER_ARCHITECTURE not in config.texts("architectures"):
        raise config.error("architectures", f"the verifier must be a {VERIFIER_ARCHITECTURE}")
    decoder = config.object("decoder")
    encoder = config.object("encoder")
    text = encoder.object("text_config") if "text_config" in encoder else encoder
    hidden = decoder.integer("hidden_size")
    if text.integer("hidden_size") != hidden:
        raise text.error("hidden_size", f"must equal decoder.hidden_size {hidden}: both share one embedding")
    window = decoder.optional_integer("sliding_window")
    types = decoder.values.get("layer_types")
    slides = types is None or "sliding_attention" in types
    return VerifierFacts(
        path=path,
        name=name,
        architecture=VERIFIER_ARCHITECTURE,
        hidden_size=hidden,
        vocab_size=decoder.integer("vocab_size"),
        num_encoder_layers=text.integer("num_hidden_layers"),
        num_decoder_layers=decoder.integer("num_hidden_layers"),
        sliding_window=window if slides else None,
        max_positions=decoder.integer("max_position_embeddings"),
        dtype=config.optional_text("dtype") or config.optional_text("torch_dtype") or "unknown",
    )


def check_verifier(facts: VerifierFacts, folder: Path) -> str:
    """Check a local verifier's weights against its config by their headers; returns the dtype most of them
    have.
    """
    tensors = read_tensors(folder)
    _check_embedding(facts, tensors, folder)
    most = Counter(tensor.dtype for tensor in tensors.values()).most_common(1)
    return _DTYPES.get(most[0][0], most[0][0]) if most else facts.dtype


def check_tokenizer(folder: Path) -> None:
    """CheckpointError when a local verifier has no tokenizer: prompts and stop strings are text."""
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise CheckpointError(
            f"{folder / _TOKENIZERS[0]}: does not exist, nor does {_TOKENIZERS[1]}; copy the tokenizer files there"
        )


def _check_embedding(facts: VerifierFacts, tensors: dict[str, Tensor], folder: Path) -> None:
    tables = {name: tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight")}
    if not tables:
        raise CheckpointError(
            f"{folder}: the weights hold no embed_tokens.weight; they are not a T5Gemma 2's"
        )
    for name, tensor in tables.items():
        if tensor.shape != (facts.vocab_size, facts.hidden_size):
            raise CheckpointError(
                f"{tensor.file}: {name} has shape {list(tensor.shape)}; config.json's decoder.vocab_size and"
                f" decoder.hidden_size say {[facts.vocab_size, facts.hidden_size]}"
            )
