"""One engine in a process of its own whose decode steps are timed: `python -m benchmarks.engine.host_arm SPEC`.

SPEC is that of `benchmarks.engine.arm` with "multiprocess" and "detokenize"; `{"measure": batch, "tokens": n, "rounds":
r}` is answered with the fields of `Measured`, and `{"join": admit, "beside": others, "every": steps, "tokens": n,
"rounds": r}` with those of `Joins`. With "multiprocess" the engine's core runs in a process of its own, as it is
served, and only the steps a second can be had.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks.engine.arm import prompts, serve
from benchmarks.engine.critical_path import device_events, shares
from benchmarks.engine.host_joins import Joins, Round, measure
from benchmarks.engine.host_report import Measured
from benchmarks.engine.phases import PhaseClock, functions, in_order, timed

WARM_STEPS = 4
WARM_ROUNDS = 2
BUSY_STEPS = 64
"""Calls besides those from one admission to the next whose launches are recorded: the profiler makes hundreds of
objects of each, which takes longer than all else."""
IN_FLIGHT = 3
"""Full steps that a request must be away from its end: those that may be under way, and the one being measured."""


class HostArm:
    """A vLLM engine that is stepped by hand."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from vllm import LLM

        self.spec = spec
        self.engine: Any = LLM(**spec["engine"]).llm_engine
        self.serial = 0

    def measure(self, batch: int, tokens: int, rounds: int) -> dict[str, Any]:
        """The fields of `Measured`. Undisturbed, timed and profiled rounds take turns: what slows the machine for a
        while slows all of them."""
        found = Measured(bool(self.engine.vllm_config.scheduler_config.async_scheduling))
        clock, profile = PhaseClock(), cProfile.Profile()
        timed_runs, profiled_runs = [], []
        for i in range(WARM_ROUNDS + rounds):
            steps, seconds = self.decode(batch, tokens, nullcontext())
            if i < WARM_ROUNDS:
                continue
            found.steps.append(steps)
            found.steps_per_second.append(steps / seconds)
            if not self.spec["multiprocess"]:
                with timed(clock, self._roots()) as found.missing:
                    timed_runs.append(self.decode(batch, tokens, _counted(clock)))
                profiled_runs.append(self.decode(batch, tokens, _profiled(profile)))
        if not self.spec["multiprocess"]:
            steps, found.phases_step = _a_step(timed_runs)
            found.phases = in_order(clock.times, steps)
            steps, found.functions_step = _a_step(profiled_runs)
            stats: Any = pstats.Stats(profile)
            found.functions = functions(stats.stats, steps)
            found.gpu_busy, _ = self._busy(lambda around: self.decode(batch, tokens, around)[0])
        return asdict(found)

    def join(self, admit: int, beside: int, every: int, tokens: int, rounds: int) -> dict[str, Any]:
        """The fields of `Joins`."""
        asynchronous = bool(self.engine.vllm_config.scheduler_config.async_scheduling)
        found, roots = Joins(admit, beside, every, asynchronous), self._roots()
        most = tokens - IN_FLIGHT * self.spec["query_len"]

        def round_of() -> Round:
            joining = partial(self.add, length=self.spec.get("joining_tokens"))
            return Round(self.engine, roots["core"].scheduler, self.add, joining)

        measure(round_of, found, roots, tokens, most, WARM_ROUNDS, rounds)

        most = min(most, (every + BUSY_STEPS) * self.spec["query_len"])

        def calls(joins: Joins) -> Callable[[AbstractContextManager[Any]], int]:
            return lambda around: len(round_of().run(joins, tokens, most, around=around))

        found.gpu_busy, _ = self._busy(calls(Joins(0, beside, every, asynchronous)))
        busy, steps = self._busy(calls(found))
        found.gpu_admission = (busy - found.gpu_busy) * steps / -(-steps // every)
        return asdict(found)

    def add(self, count: int, tokens: int, length: int | None = None) -> list[str]:
        """Adds requests of new random prompts, of `length` ids or the arm's own; their names."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=self.spec["detokenize"],
            output_kind=RequestOutputKind.DELTA,
        )
        names = []
        length = length or self.spec["prompt_tokens"]
        for ids in prompts(count, length, self.spec["vocabulary"], self.serial):
            names.append(f"host-{self.serial}")
            self.serial += 1
            self.engine.add_request(names[-1], {"prompt_token_ids": ids}, params)
        return names

    def decode(self, batch: int, tokens: int, around: AbstractContextManager[Any]) -> tuple[int, float]:
        """`decode_steps` of `batch` new requests of `tokens` tokens each."""
        names = self.add(batch, tokens)
        return decode_steps(self.engine, names, tokens - IN_FLIGHT * self.spec["query_len"], around)

    def _roots(self) -> dict[str, Any]:
        """Where `phases.PLACES` begin; a runner that is not where vLLM 0.32 has it is None."""
        core = runner = self.engine.engine_core.engine_core
        for name in ("model_executor", "driver_worker", "worker", "model_runner"):
            runner = getattr(runner, name, None)
        return {"engine": self.engine, "core": core, "runner": runner}

    def _busy(self, run: Callable[[AbstractContextManager[Any]], int]) -> tuple[float, int]:
        """Seconds a step in which something runs on the GPU, and the steps that `run` takes within what it is given."""
        import torch

        if not torch.cuda.is_available():
            return 0.0, 1
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        steps = run(_recorded(profiler))
        busy = sum(share.critical_us for share in shares(device_events(profiler)).values()) / 1e6
        return busy / steps, steps


def _a_step(runs: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """Steps of all runs, and seconds of one."""
    steps = sum(steps for steps, _ in runs)
    return steps, sum(seconds for _, seconds in runs) / steps


def decode_steps(
    engine: Any, names: Iterable[str], most: int, around: AbstractContextManager[Any]
) -> tuple[int, float]:
    """Steps in which the requests `names` run and none is admitted or has more than `most` tokens yet, and the seconds
    of all these steps, which are taken within `around`. The requests have ended when it returns.

    Raises:
        ValueError: there is no such step.
    """
    made = dict.fromkeys(names, 0)

    def step() -> bool:
        outputs = engine.step()
        for output in outputs:
            made[output.request_id] += len(output.outputs[0].token_ids)
        return bool(outputs)

    while not all(made.values()):
        step()
    for _ in range(WARM_STEPS):
        step()
    steps = 0
    with around:
        began = time.perf_counter()
        while max(made.values()) <= most:
            steps += step()
        seconds = time.perf_counter() - began
    while engine.has_unfinished_requests():
        engine.step()
    if not steps:
        raise ValueError("the requests are too short: no step is left to be measured")
    return steps, seconds


@contextmanager
def _counted(clock: PhaseClock) -> Iterator[None]:
    clock.start()
    try:
        yield
    finally:
        clock.stop()


@contextmanager
def _profiled(profile: cProfile.Profile) -> Iterator[None]:
    profile.enable()
    try:
        yield
    finally:
        profile.disable()


@contextmanager
def _recorded(profiler: Any) -> Iterator[None]:
    """The step in flight when it begins is not recorded, the one in flight when it ends is: as many as were counted."""
    import torch

    torch.cuda.synchronize()
    with profiler:
        yield
        torch.cuda.synchronize()


def main() -> None:
    """Start the engine, then answer until the input ends."""
    spec = json.loads(sys.argv[1])
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if spec["multiprocess"] else "0"
    start = time.perf_counter()
    arm = HostArm(spec)
    serve(arm, time.perf_counter() - start)
    if spec["multiprocess"]:
        arm.engine.engine_core.shutdown()
    os._exit(0)  # vLLM's own teardown in the process takes its time and prints


if __name__ == "__main__":
    main()
