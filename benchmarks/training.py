"""Training throughput at the published shapes, random weights: tokens a second, FLOP utilisation, what takes long.

    python -m benchmarks.training --rows 8 --extractor-batch 32 --out benchmarks/results/h200.json

Floating-point operations are counted by torch (`torch.utils.flop_counter`) over one whole step, the verifier's pass
included, and utilisation is their rate over that of a large matrix product measured in the same run and precision.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, T5Gemma2ForConditionalGeneration

from benchmarks.attention.timing import require_gpu
from benchmarks.results import record, typed
from benchmarks.shapes import write_verifier
from plugin.drafts.families import FAMILIES
from plugin.training.data.samples import Sample
from plugin.training.draft.shape import new_draft, new_shape
from plugin.training.run.trainer import DraftTrainer, check_finite
from plugin.training.settings import DraftSettings
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.packing import packed_rows, packed_states

MASK_TOKEN_ID = 4


@dataclass(frozen=True, slots=True)
class Throughput:
    """One measured configuration. Tokens are decoder tokens; times are medians, seconds; rates in FLOP/s."""

    tokens_per_second: float
    samples_per_second: float
    step_seconds: float
    extraction_seconds: float
    step_flop: int
    extraction_flop: int
    matrix_flop_per_second: float

    @property
    def utilisation(self) -> float:
        """Model FLOP of a step over what the measured matrix rate would do in its time."""
        return self.step_flop / self.step_seconds / self.matrix_flop_per_second

    def figures(self, family: str) -> dict[str, float]:
        """The numbers by the names of the results file."""
        return {
            f"training_{family}_tokens_per_second": self.tokens_per_second,
            f"training_{family}_samples_per_second": self.samples_per_second,
            f"training_{family}_flop_utilisation": self.utilisation,
            f"training_{family}_extraction_share": self.extraction_seconds / self.step_seconds,
        }


def samples(settings: DraftSettings, vocabulary: int, prompt: int, response: int) -> list[list[Sample]]:
    """Full rows of random samples, `settings.step_rows` of them: prompts and responses of these lengths in tokens."""
    draw = random.Random(settings.seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(10, vocabulary) for _ in range(count)]

    each = settings.total_length // (1 + response)
    if not each:
        raise ValueError(f"response: {response} tokens do not fit into a row of {settings.total_length}")
    return [[Sample(ids(prompt), ids(response)) for _ in range(each)] for _ in range(settings.step_rows)]


def measure(
    model: Any, family: Any, settings: DraftSettings, prompt: int, response: int, steps: int, **shape: Any
) -> Throughput:
    """Trains `steps` steps (after two that do not count) on one batch of random samples; `shape` goes to the draft."""
    device = model.device
    model.requires_grad_(False)
    decoder = model.config.decoder
    groups = samples(settings, decoder.vocab_size, prompt, response)
    flat = [sample for group in groups for sample in group]
    config = new_shape(family, decoder, mask_token_id=MASK_TOKEN_ID, **shape)
    table = model.get_input_embeddings().weight.detach()
    draft = new_draft(config, table, (sample.response for sample in flat), settings.seed)
    extractor = Extractor(model, config.aux_hidden_state_layer_ids)
    trainer = DraftTrainer(draft, extractor, settings, flat)
    rows = packed_rows(groups, extractor.pad_id, extractor.start_id).to(device)

    def step() -> None:
        check_finite([trainer.take(groups)])

    def extract() -> None:
        for first in range(0, len(groups), settings.rows):
            part = rows.part(first, settings.rows)
            packed_states(extractor, part, settings.extractor_batch)

    step_flop, extraction_flop = counted(step), counted(extract)
    step()
    step_seconds, extraction_seconds = timed(step, steps, device), timed(extract, steps, device)
    return Throughput(
        tokens_per_second=sum(1 + len(sample.response) for sample in flat) / step_seconds,
        samples_per_second=len(flat) / step_seconds,
        step_seconds=step_seconds,
        extraction_seconds=extraction_seconds,
        step_flop=step_flop,
        extraction_flop=extraction_flop,
        matrix_flop_per_second=matrix_rate(device, settings.precision),
    )


def counted(work: Any) -> int:
    """Floating-point operations of one call, as torch counts its matrix products and attentions.

    Nothing is compiled meanwhile, nor marked: what a counter has seen uncompiled, torch leaves so for good.
    """
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def timed(work: Any, repeats: int, device: torch.device) -> float:
    """Median seconds of a call, the device's work included."""
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def matrix_rate(device: torch.device, precision: str, size: int | None = None, repeats: int = 10) -> float:
    """FLOP/s of a square matrix product in `precision`; the ceiling that utilisation refers to."""
    size = size or (8192 if device.type == "cuda" else 512)
    left = torch.randn(size, size, device=device, dtype=getattr(torch, precision))
    right = torch.randn_like(left)
    timed(lambda: left @ right, 3, device)
    return 2 * size**3 / timed(lambda: left @ right, repeats, device)


def random_verifier(device: torch.device) -> Any:
    """A verifier of the published 1B-1B shapes with random bfloat16 weights."""
    with tempfile.TemporaryDirectory() as folder:
        config = AutoConfig.from_pretrained(write_verifier(Path(folder)))
    torch.manual_seed(0)
    with device:
        model: Any = T5Gemma2ForConditionalGeneration._from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=FAMILIES, default="dflare")
    parser.add_argument("--rows", type=int, default=8, help="packed rows a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    parser.add_argument(
        "--extractor-batch", type=int, default=32, help="samples that the verifier reads at once"
    )
    parser.add_argument("--prompt", type=int, default=256, help="encoder tokens of a sample")
    parser.add_argument("--response", type=int, default=255, help="decoder tokens of a sample")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, help="merge the figures into this JSON file")
    arguments = parser.parse_args()
    require_gpu()
    settings = DraftSettings(
        rows=arguments.rows, accumulate=arguments.accumulate, extractor_batch=arguments.extractor_batch
    )
    model = random_verifier(torch.device("cuda"))
    found = measure(model, arguments.family, settings, arguments.prompt, arguments.response, arguments.steps)
    for name, value in {**asdict(found), **found.figures(arguments.family)}.items():
        print(f"{name} = {value:.4g}")
    print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    if arguments.out:
        record(arguments.out, typed("benchmarks.training"), found.figures(arguments.family), asdict(found))


if __name__ == "__main__":
    main()
