"""What the encoder needs on a CPU besides its weights, by the prompt's length: whole, and in parts as beside others.

    python -m benchmarks.encoder_memory --model plugin/demo/verifier

Resident memory at its highest above what it was before, of the encoder alone, with random weights in the model's shape.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import (
    cleanup_dist_env_and_memory,
    init_distributed_environment,
    initialize_model_parallel,
)

from plugin.verifier.encoder.passes import MOST_ROWS, EncoderPass
from plugin.verifier.encoder.text_encoder import TextEncoder
from plugin.verifier.layers import ScaledEmbedding

PART_ROWS = 256
_EOI = 5


@contextmanager
def random_encoder(text_config: Any) -> Iterator[TextEncoder]:
    """The encoder of a text configuration on the CPU, without an engine around it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))),
        torch.inference_mode(),
    ):
        init_distributed_environment(1, 0, f"file://{folder}/meeting", 0, "gloo")
        initialize_model_parallel()
        try:
            embedding = ScaledEmbedding(text_config.vocab_size, text_config.hidden_size, _EOI, "embed_tokens")
            encoder = TextEncoder(text_config, embedding, prefix="encoder")
            generator = torch.Generator().manual_seed(1)
            for weight in (*embedding.parameters(), *encoder.parameters()):
                weight.data.normal_(0, 0.05, generator=generator)
            for module in encoder.modules():
                if (method := getattr(module, "quant_method", None)) is not None:
                    method.process_weights_after_loading(module)
            yield encoder
        finally:
            cleanup_dist_env_and_memory()


def encode(encoder: TextEncoder, length: int, part_rows: int = MOST_ROWS) -> torch.Tensor:
    """States `[length, hidden_size]` of one prompt, in parts of so many rows."""
    ids, positions = torch.full((length,), 9), torch.arange(length)
    bounds = torch.tensor([0, length], dtype=torch.int32)
    under_way = EncoderPass(encoder, ids, positions, bounds, length)
    while rest := under_way.num_rows - under_way.rows_done:
        under_way.advance(min(part_rows, rest))
    return under_way.states


def peak_kib(encoder: TextEncoder, length: int, part_rows: int) -> int:
    """KiB of resident memory that one prompt's pass takes at most."""
    encode(encoder, min(length, 512), part_rows)
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    before = _status("VmRSS")
    encode(encoder, length, part_rows)
    return _status("VmHWM") - before


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def main(argv: Sequence[str] | None = None) -> int:
    from transformers import AutoConfig

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--model", type=Path, required=True, help="verifier, for its shape")
    lengths = [512 << i for i in range(6)]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths, help="prompt tokens")
    args = parser.parse_args(argv)
    # Memory that is freed is given back at once, so that what is resident is what is used.
    ctypes.CDLL(None).mallopt(-3, 64 << 10)
    text_config = AutoConfig.from_pretrained(args.model).encoder.text_config
    text_config.max_position_embeddings = max(args.lengths)
    with random_encoder(text_config) as encoder:
        for length in args.lengths:
            whole, parted = (peak_kib(encoder, length, rows) for rows in (MOST_ROWS, PART_ROWS))
            print(
                f"{length} tokens: {whole / 1024:.1f} MiB ({whole / length:.1f} KiB a token), in parts of"
                f" {PART_ROWS} {parted / 1024:.1f} MiB ({parted / length:.1f})",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
