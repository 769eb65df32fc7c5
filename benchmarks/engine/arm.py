"""One engine in a process of its own, told what to do line by line: `python -m benchmarks.engine.arm SPEC`.

Engines that are compared must live at the same time, so that their runs can be interleaved; and one process holds one
engine. SPEC and every command and answer are one line of JSON. Commands:

- {"run": batch, "tokens": n} -> {"seconds", "tokens"}: n new tokens for each of `batch` prompts, wall seconds;
- {"busy": batch, "tokens": n} -> {"kernels"}: microseconds of GPU work by kernel in such a run, without overlaps;
- {"graphs": batch} -> GPU seconds of the captured verify and draft steps, a list each;
- {"attention": batch} -> microseconds a layer of each attention kernel in the verify step, a list each;
- {"path": batch} -> the captured verify and draft steps by kernel: time on the critical path and gaps;
- {"bandwidth": 1} -> {"bytes_per_second"} of a large copy.

A command that fails is answered with {"error"}; the arm goes on.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

from benchmarks.engine import worker


def say(**answer: Any) -> None:
    """Write one answer."""
    print("@" + json.dumps(answer), flush=True)


def prompts(batch: int, length: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    """`batch` prompts of `length` random ids, for each seed the same in every process."""
    import random

    generator = random.Random(seed)
    return [[2, *(generator.randrange(10, vocabulary) for _ in range(length - 1))] for _ in range(batch)]


class VllmArm:
    """A vLLM engine; SPEC's "engine" goes to `LLM`."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from vllm import LLM

        self.spec = spec
        self.llm = LLM(**spec["engine"])

    def run(self, batch: int, tokens: int) -> dict[str, Any]:
        """Greedy tokens, as fast as the engine makes them."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        ids = prompts(batch, self.spec["prompt_tokens"], self.spec["vocabulary"])
        start = time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in ids], params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": sum(len(o.outputs[0].token_ids) for o in outputs)}

    def busy(self, batch: int, tokens: int) -> dict[str, Any]:
        """Microseconds by kernel, on the critical path, of such a run; recording makes it slower, not its kernels."""
        self._ask(worker.start_profile)
        self.run(batch, tokens)
        return {"kernels": self._ask(worker.stop_profile)}

    def graphs(self, batch: int) -> dict[str, Any]:
        """GPU seconds of the captured steps."""
        return dict(self._ask(worker.graph_seconds, batch, self.spec["query_len"]))

    def attention(self, batch: int) -> dict[str, Any]:
        """Microseconds a layer by attention kernel, at the lengths at which a run of `SPEC["new_tokens"]` ends."""
        self.run(batch, self.spec["new_tokens"])
        return dict(self._ask(worker.attention_us, batch, self.spec["query_len"]))

    def path(self, batch: int) -> dict[str, Any]:
        """The captured steps by kernel, at the lengths of the last run."""
        return dict(self._ask(worker.graph_path, batch, self.spec["query_len"]))

    def bandwidth(self, _: int) -> dict[str, Any]:
        """The ceiling."""
        return {"bytes_per_second": self._ask(worker.bandwidth)}

    def _ask(self, function: Any, *args: Any) -> Any:
        return self.llm.collective_rpc(function, args=args)[0]


class TransformersArm:
    """transformers' own `generate` on the same shapes."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import torch
        from transformers import AutoConfig, T5Gemma2ForConditionalGeneration

        torch.manual_seed(0)
        self.spec, self.torch = spec, torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        config = AutoConfig.from_pretrained(spec["engine"]["model"])
        with torch.device(self.device):
            self.model = T5Gemma2ForConditionalGeneration._from_config(config, dtype=torch.bfloat16).eval()

    def run(self, batch: int, tokens: int) -> dict[str, Any]:
        """Greedy tokens."""
        torch, spec = self.torch, self.spec
        ids = torch.tensor(prompts(batch, spec["prompt_tokens"], spec["vocabulary"]), device=self.device)
        start = time.perf_counter()
        out = self.model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        out.cpu()
        return {"seconds": time.perf_counter() - start, "tokens": batch * (out.shape[1] - 1)}


def main() -> None:
    """Start the engine, then answer until the input ends."""
    spec = json.loads(sys.argv[1])
    # The functions of `benchmarks.engine.worker` travel to the worker.
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    start = time.perf_counter()
    arm: Any = TransformersArm(spec) if spec["kind"] == "transformers" else VllmArm(spec)
    serve(arm, time.perf_counter() - start)


def serve(arm: Any, ready_s: float) -> None:
    """Say that `arm` is ready, then answer until the input ends."""
    say(ready=ready_s)
    for line in sys.stdin:
        try:
            say(**answer(arm, json.loads(line)))
        except Exception as error:
            traceback.print_exc()
            say(error=f"{type(error).__name__}: {str(error)[:300]}")


def answer(arm: Any, command: dict[str, Any]) -> dict[str, Any]:
    """What `arm` says to one command."""
    (name, batch), *more = command.items()
    return dict(getattr(arm, name)(batch, **dict(more)))


if __name__ == "__main__":
    main()
