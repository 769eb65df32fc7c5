"""A tiny random T5Gemma 2 verifier, so that every engine test has an answer known from transformers.

Everything that makes T5Gemma 2 different is in it: both layer types with a window small enough to matter, grouped
queries, linear rope scaling, an end-of-image row, (1 + w) norms that are not the identity, the merged attention.
The weights are scaled so that greedy output is varied: a small embedding keeps the input token from dominating the
residual stream, sharp queries and keys make every attention key count, and a large final norm spreads the logits.

`python -m tests.reference.tiny OUT` writes `OUT/verifier` and the drafts of `tests.reference.tiny_drafts`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, T5Gemma2Config, T5Gemma2ForConditionalGeneration

PAD, EOS, BOS, UNK, MASK, END_OF_IMAGE, IMAGE = range(7)
SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<end_of_image>", "<image>")
VOCAB_SIZE = 512
TOKENIZER_SIZE = 480  # fewer than the table has rows, as in the real checkpoints
HIDDEN_SIZE = 64
WINDOW = 8
MAX_POSITIONS = 1024
SEED = 1  # of those tried, one whose answers end at many lengths and whose smallest top-2 gap is 2e-4
LAYER_TYPES = ("sliding_attention", "sliding_attention", "full_attention") * 2

_CORPUS = (
    "A train travels 60 miles in 2 hours. What is its average speed?",
    "Hello world, this is a short text; it only has to give the tokenizer a few merges.",
    "Tom has 12 apples and buys 30 more, then gives 7 away. How many apples are left?",
    "The encoder reads the question, the decoder writes the answer step by step.",
    "Speculative decoding proposes a block of tokens and verifies all of them in one step.",
    "der die das und ist nicht; le la les et est pas; el los las y es no; naïve café über Straße",
)


@dataclass(frozen=True)
class TinyShape:
    """What a test may vary in the verifier; every size but the vocabulary's is in units of features or layers."""

    window: int = WINDOW
    layer_types: tuple[str, ...] = LAYER_TYPES
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    final_logit_softcapping: float | None = None


def tiny_config(shape: TinyShape = TinyShape()) -> T5Gemma2Config:
    """The configuration: hidden 64, 6 + 6 layers (s, s, f, s, s, f), window 8, 4 query and 2 key heads of 32."""
    text = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 2 * HIDDEN_SIZE,
        "num_hidden_layers": len(shape.layer_types),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "query_pre_attn_scalar": shape.head_dim,
        "sliding_window": shape.window,
        "layer_types": list(shape.layer_types),
        "max_position_embeddings": MAX_POSITIONS,
        "final_logit_softcapping": shape.final_logit_softcapping,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
    }
    vision = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 16,
        "patch_size": 8,
    }
    encoder = {
        "text_config": text,
        "vision_config": vision,
        "mm_tokens_per_image": 4,
        "boi_token_index": IMAGE,
        "eoi_token_index": END_OF_IMAGE,
        "image_token_index": IMAGE,
    }
    return T5Gemma2Config(
        encoder=encoder, decoder=text, image_token_index=IMAGE, eoi_token_index=END_OF_IMAGE
    )


def tiny_model(seed: int = SEED, shape: TinyShape = TinyShape()) -> T5Gemma2ForConditionalGeneration:
    """The verifier in float32 with every weight drawn from one seeded generator, in evaluation mode."""
    model = T5Gemma2ForConditionalGeneration(tiny_config(shape)).float().eval()
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if id(weight) in seen:
                continue
            seen.add(id(weight))
            mean, std = _mean_and_std(name, weight)
            weight.copy_(mean + std * torch.randn(weight.shape, generator=generator))
    return model


def _mean_and_std(name: str, weight: torch.Tensor) -> tuple[float, float]:
    """Mean and standard deviation that weight `name` is drawn with (norm weights act as 1 + w)."""
    if name.endswith("decoder.norm.weight"):
        return 7.0, 0.5
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.4, 0.2
    if "norm" in name:
        return 0.0, 0.2
    if "embed_tokens" in name or "eoi_embedding" in name:
        return 0.0, 0.05
    return 0.0, weight.shape[-1] ** -0.5


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 480 entries that puts <bos> in front, as Gemma's does, and decodes any byte sequence."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=MAX_POSITIONS,
        padding_side="right",
    )


def write_verifier(folder: Path, seed: int = SEED, shape: TinyShape = TinyShape()) -> Path:
    """Write config.json, model.safetensors and the tokenizer as transformers saves them; return `folder`."""
    tiny_model(seed, shape).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


if __name__ == "__main__":
    from tests.reference.tiny_drafts import write_drafts

    out = Path(sys.argv[1])
    write_verifier(out / "verifier")
    write_drafts(out, out / "verifier")
