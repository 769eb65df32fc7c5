"""The encoder's GPU programs under Triton's interpreter, a process of its own: prints what it found as JSON.

The ops' programs run on the CPU here, which is made to look like CUDA where the encoder asks.
"""

import json
import sys
from types import SimpleNamespace
from unittest import mock

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from benchmarks.encoder_memory import random_encoder
from plugin.projection import few_tokens, triton_linear
from plugin.verifier.encoder import text_encoder
from plugin.verifier.encoder.text_encoder import TextEncoder
from tests.reference.tiny import TinyShape, tiny_config

MOST = 8
"""Tokens up to which our program takes projections here."""
LENGTHS = {"few tokens": [2, 3], "most tokens": [8], "more tokens": [6, 5]}
LAYERS = ("sliding_attention", "full_attention")


def states(encoder: TextEncoder, lengths: list[int], most: int) -> tuple[torch.Tensor, int]:
    """The states of prompts, and launches of our program for projections of up to `most` tokens."""
    total = sum(lengths)
    ids = torch.randint(9, 200, (total,), generator=torch.Generator().manual_seed(total))
    positions = torch.cat([torch.arange(length) for length in lengths])
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    with (
        mock.patch.object(few_tokens, "MAX_TOKENS", most),
        mock.patch.object(triton_linear, "project_parts", wraps=triton_linear.project_parts) as launches,
    ):
        found = encoder(ids, positions, bounds, max(lengths))
    return found, launches.call_count


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want|."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def facts(encoder: TextEncoder, lengths: list[int]) -> dict[str, float]:
    """Our program's part in an encoding, what it changes, and what one wrong projection changes: the control."""
    apart, without = states(encoder, lengths, 0)
    found, launches = states(encoder, lengths, MOST)
    weight = encoder.layers[1].mlp.down_proj.weight
    stock = weight.clone()
    weight.copy_(stock.roll(1, 0))
    control, _ = states(encoder, lengths, MOST)
    weight.copy_(stock)
    return {
        "error": relative(found, apart),
        "launches": launches,
        "launches without": without,
        "control": relative(control, apart),
    }


def main() -> None:
    """Print one JSON object: the facts by prompts."""
    config = tiny_config(TinyShape(layer_types=LAYERS)).encoder.text_config
    config.intermediate_size = 2304  # more inputs than one program walks: in shares
    torch.set_default_dtype(torch.float16)
    cuda = SimpleNamespace(is_cuda=lambda: True)
    with (
        # It packs the weights away on a CPU.
        mock.patch.object(UnquantizedLinearMethod, "process_weights_after_loading"),
        random_encoder(config) as encoder,
        mock.patch.object(few_tokens, "current_platform", cuda),
        mock.patch.object(text_encoder, "_has_programs", return_value=True),
    ):
        json.dump({name: facts(encoder, lengths) for name, lengths in LENGTHS.items()}, sys.stdout)


if __name__ == "__main__":
    main()
