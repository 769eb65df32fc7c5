"""One engine in a process of its own, told what to do line by line: `python -m benchmarks.engine.arm SPEC`.

Engines that are compared must live at the same time, so that their runs can be interleaved; and one process holds one
engine. SPEC and every command and answer are one line of JSON. Commands: {"run": batch} -> {"seconds", "tokens"};
{"graphs": batch} -> GPU seconds of the captured verify and draft steps; {"stop": true}.
"""

import json
import os
import sys
import time
from typing import Any


def say(**answer: Any) -> None:
    print("@" + json.dumps(answer), flush=True)


def prompts(batch: int, length: int, vocabulary: int) -> list[list[int]]:
    """`batch` prompts of `length` random ids, the same in every process."""
    import random

    generator = random.Random(0)
    return [[2, *(generator.randrange(10, vocabulary) for _ in range(length - 1))] for _ in range(batch)]


class VllmArm:
    """A vLLM engine; SPEC's "engine" goes to `LLM`."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from vllm import LLM

        self.spec = spec
        self.llm = LLM(**spec["engine"])

    def run(self, batch: int) -> dict[str, Any]:
        from vllm import SamplingParams

        spec = self.spec
        params = SamplingParams(
            temperature=0, max_tokens=spec["new_tokens"], ignore_eos=True, detokenize=False
        )
        ids = prompts(batch, spec["prompt_tokens"], spec["vocabulary"])
        start = time.perf_counter()
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in ids], params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": sum(len(o.outputs[0].token_ids) for o in outputs)}

    def graphs(self, batch: int) -> dict[str, Any]:
        return dict(self.llm.collective_rpc(time_graphs, args=(batch,))[0])


def time_graphs(worker: Any, batch: int, repeats: int = 200) -> dict[str, float]:
    """GPU seconds of one replay of the captured verify step and draft step for `batch` requests (V2 runner)."""
    import torch

    runner = worker.model_runner

    def timed(manager: Any) -> float | None:
        descriptions = [d for d in manager.graphs if getattr(d, "num_reqs", None) == batch]
        if not descriptions:
            return None
        graph = manager.graphs[descriptions[0]]
        for _ in range(20):
            graph.replay()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / repeats

    found = {"verify": timed(runner.cudagraph_manager)}
    if getattr(runner, "speculator", None) is not None:
        found["draft"] = timed(runner.speculator.query_cudagraph_manager)
    return {name: seconds for name, seconds in found.items() if seconds is not None}


class TransformersArm:
    """transformers' own `generate` on the same shapes."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import torch
        from transformers import AutoConfig, T5Gemma2ForConditionalGeneration

        torch.manual_seed(0)
        self.spec, self.torch = spec, torch
        config = AutoConfig.from_pretrained(spec["engine"]["model"])
        with torch.device("cuda"):
            self.model = T5Gemma2ForConditionalGeneration._from_config(config, dtype=torch.bfloat16).eval()

    def run(self, batch: int) -> dict[str, Any]:
        torch, spec = self.torch, self.spec
        ids = torch.tensor(prompts(batch, spec["prompt_tokens"], spec["vocabulary"]), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        n = spec["new_tokens"]
        out = self.model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False)
        torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - start, "tokens": batch * (out.shape[1] - 1)}


def main() -> None:
    spec = json.loads(sys.argv[1])
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # `time_graphs` travels to the worker
    start = time.perf_counter()
    arm: Any = TransformersArm(spec) if spec["kind"] == "transformers" else VllmArm(spec)
    say(ready=time.perf_counter() - start)
    for line in sys.stdin:
        command = json.loads(line)
        if "run" in command:
            say(**arm.run(command["run"]))
        elif "graphs" in command:
            say(**arm.graphs(command["graphs"]))
        else:
            break


if __name__ == "__main__":
    main()
