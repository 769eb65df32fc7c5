"""A T5Gemma 2 checkpoint's config.json as facts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from plugin.drafts.facts import CheckpointError, VerifierFacts
from plugin.drafts.families import VERIFIER_ARCHITECTURE
from plugin.drafts.fields import Fields
from plugin.drafts.location import Location
from plugin.drafts.safetensors_header import read_tensors
from plugin.drafts.speculators import is_draft
from plugin.drafts.stack import (
    LAYER_TYPES,
    check_epsilon,
    check_layer_types,
    check_rope,
    check_token_ids,
    max_positions,
    num_layers,
)
from plugin.drafts.verifier_tensors import check_layers

_TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_MODEL_TYPE = "t5gemma2"
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def verifier_facts(config: Fields, location: Location) -> VerifierFacts:
    """Facts of a verifier's config; CheckpointError naming the key when it is another model or incomplete."""
    if is_draft(config):
        raise CheckpointError(f"{config.file}: is a draft (it has speculators_config), not a verifier")
    if VERIFIER_ARCHITECTURE not in config.texts("architectures"):
        raise config.error("architectures", f"the verifier must be a {VERIFIER_ARCHITECTURE}")
    config.one_of("model_type", (_MODEL_TYPE,))
    decoder = config.object("decoder")
    encoder = config.object("encoder")
    text = encoder.object("text_config") if "text_config" in encoder else encoder
    for stack in (decoder, text):
        _check_stack(stack)
    for key in ("hidden_size", "vocab_size"):
        if (shared := decoder.integer(key)) != text.integer(key):
            raise text.error(key, f"must equal decoder.{key} {shared}: both share one embedding")
    vocab_size = decoder.integer("vocab_size")
    for part in (config, decoder):
        check_token_ids(part, _TOKEN_IDS, vocab_size)
    check_token_ids(config, ("eoi_token_index",), vocab_size)
    if config.values.get("decoder_start_token_id") is None and decoder.values.get("bos_token_id", 0) is None:
        raise decoder.error("bos_token_id", "the decoder starts with it, or with decoder_start_token_id")
    types = decoder.values.get("layer_types")
    slides = types is None or "sliding_attention" in types
    return VerifierFacts(
        path=location.path,
        name=location.name,
        architecture=VERIFIER_ARCHITECTURE,
        hidden_size=decoder.integer("hidden_size"),
        vocab_size=vocab_size,
        num_encoder_layers=num_layers(text),
        num_decoder_layers=num_layers(decoder),
        sliding_window=decoder.optional_integer("sliding_window") if slides else None,
        max_positions=max_positions(decoder),
        dtype=config.optional_text("dtype") or config.optional_text("torch_dtype") or "unknown",
    )


def _check_stack(stack: Fields) -> None:
    """Refuse what transformers or vLLM would refuse late, or take and compute nonsense with. A key that is absent has
    transformers' default, in the reference as here.
    """
    positions = max_positions(stack)
    check_layer_types(stack, num_layers(stack))
    for key in (
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "sliding_window",
    ):
        stack.optional_integer(key)
    heads, kv_heads = (
        stack.integer(key, default=1) for key in ("num_attention_heads", "num_key_value_heads")
    )
    if "num_attention_heads" in stack and heads % kv_heads:
        raise stack.error("num_attention_heads", f"must be a multiple of {kv_heads} key/value heads")
    if "hidden_activation" in stack:
        stack.one_of("hidden_activation", ("gelu_pytorch_tanh",))
    for key in ("attention_bias", "tie_word_embeddings"):
        stack.flag(key, default=False)
    if "rms_norm_eps" in stack:
        check_epsilon(stack)
    for key, high in (("query_pre_attn_scalar", 2**16), ("final_logit_softcapping", 1e6)):
        if stack.values.get(key) is not None or (key == "query_pre_attn_scalar" and key in stack):
            stack.number(key, low=0, above=True, at_most=high)
    if stack.values.get("rope_parameters") is not None:
        rope = stack.object("rope_parameters")
        for kind in LAYER_TYPES:
            if rope.values.get(kind) is not None:
                check_rope(rope.object(kind), stack, positions, theta=False)


def check_verifier(facts: VerifierFacts, folder: Path) -> str:
    """Check a local verifier's weights against its config by their headers; returns the dtype most of them have."""
    tensors = read_tensors(folder)
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
    check_layers(Fields.read(folder / "config.json"), folder, tensors)
    [(most, _)] = Counter(tensor.dtype for tensor in tensors.values()).most_common(1)
    return _DTYPES.get(most, most)


def check_tokenizer(folder: Path) -> None:
    """CheckpointError when a local verifier has no tokenizer: prompts and stop strings are text."""
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise CheckpointError(
            f"{folder / _TOKENIZERS[0]}: does not exist, nor does {_TOKENIZERS[1]}; copy the tokenizer files there"
        )
