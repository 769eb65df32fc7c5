"""The step that admits requests, at the published shapes with random weights: time to the first token, and a profile.

    python -m benchmarks.engine.admission [--arm raw|decoder_only|dflash|dspark|dflare] [--eager]

The engine runs inside the process, stepped by hand; the peer is `decoder_only`.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.engine.arm import prompts
from benchmarks.shapes import VOCABULARY, write_decoder_only, write_draft, write_verifier
from plugin.drafts.families import FAMILIES

BATCHES = (1, 4, 32)
PROMPT_TOKENS = 64
K = 7


def build(arm: str, root: Path, eager: bool) -> Any:
    """A vLLM `LLM` with dummy weights."""
    from vllm import LLM

    model = write_decoder_only(root / arm) if arm == "decoder_only" else write_verifier(root / "verifier")
    options: dict[str, Any] = {"enable_prefix_caching": False}
    step_tokens = 1
    if arm in FAMILIES:
        family = FAMILIES[arm].name
        step_tokens = 1 + K
        options["speculative_config"] = {
            "model": str(write_draft(root / arm, family, model)),
            "method": "dflash",
            "num_speculative_tokens": K,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": 4.0,
        }
    return LLM(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=8192,
        kv_cache_memory_bytes=4 << 30,
        enforce_eager=eager,
        compilation_config={"cudagraph_capture_sizes": [batch * step_tokens for batch in BATCHES]},
        **options,
    )


class Stepper:
    """Admits batches and times each step of the engine, the device included."""

    def __init__(self, llm: Any) -> None:
        self.engine = llm.llm_engine
        self.serial = 0

    def admit(self, batch: int, new_tokens: int) -> None:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        for ids in prompts(batch, PROMPT_TOKENS, VOCABULARY):
            self.serial += 1
            self.engine.add_request(f"r{self.serial}", {"prompt_token_ids": ids}, params)

    def step(self) -> float:
        """Seconds of one step."""
        import torch

        torch.cuda.synchronize()
        start = time.perf_counter()
        self.engine.step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def drain(self) -> None:
        while self.engine.has_unfinished_requests():
            self.engine.step()


def first_token(llm: Any, batch: int, rounds: int) -> list[float]:
    """Seconds from the call to the answer of one token, a value a round."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    inputs = [{"prompt_token_ids": ids} for ids in prompts(batch, PROMPT_TOKENS, VOCABULARY)]
    seconds = []
    for _ in range(rounds + 3):
        start = time.perf_counter()
        llm.generate(inputs, params, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    return seconds[3:]


def profile(stepper: Stepper, batch: int, rows: int) -> None:
    """Tables of one step that admits `batch` requests: by host time, by device time, and what was launched."""
    import torch
    from torch.profiler import ProfilerActivity

    stepper.admit(batch, 2)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        seconds = stepper.step()
    stepper.drain()
    averages = found.key_averages()
    device = sum(event.self_device_time_total for event in averages)
    launches = sum(event.count for event in averages if "Launch" in event.key)
    print(
        f"== batch {batch}: {seconds * 1e3:.2f} ms profiled, device {device / 1e3:.3f} ms, {launches} launches"
    )
    print(averages.table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=60))
    print(averages.table(sort_by="self_device_time_total", row_limit=rows, max_name_column_width=90))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arm", default="raw", choices=["raw", "decoder_only", *FAMILIES])
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=18, help="lines of a profile's table")
    args = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with tempfile.TemporaryDirectory() as root:
        start = time.perf_counter()
        llm = build(args.arm, Path(root), args.eager)
        print(f"{args.arm}: ready after {time.perf_counter() - start:.0f} s", flush=True)
        stepper = Stepper(llm)
        for batch in BATCHES:
            walls = first_token(llm, batch, args.rounds)
            steps = []
            for _ in range(args.rounds):
                stepper.admit(batch, 2)
                steps.append(stepper.step())
                stepper.drain()
            print(
                f"{args.arm} batch {batch}: first token {statistics.median(walls) * 1e3:.2f} ms "
                f"(min {min(walls) * 1e3:.2f}), admitting step {statistics.median(steps) * 1e3:.2f} ms "
                f"(min {min(steps) * 1e3:.2f})",
                flush=True,
            )
        for batch in BATCHES:
            profile(stepper, batch, args.rows)
    os._exit(0)  # vLLM's own teardown in the process takes its time and prints


if __name__ == "__main__":
    main()
