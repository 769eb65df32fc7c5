"""One vLLM engine inside the test process, stepped by hand.

Inside the process a test can break one thing with monkeypatch, see every drafted block, and decide at which engine step
a request joins or leaves; starting such an engine takes a few seconds, not twenty. The way through engine processes is
covered by `tests/engine/gateway`. The GPU tests use it, too.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from vllm import EngineArgs, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.outputs import RequestOutput
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor.abstract import Executor

from app.drafts.encoder_totals import EncoderTotals
from plugin.drafts.steps import StepStats
from tests.engine.counters import Counters, Recorder

MAX_STEPS = 20_000


@dataclass(frozen=True)
class Job:
    """A request: encoder ids, when it joins (engine step), and when it is aborted, if ever."""

    prompt: tuple[int, ...]
    max_tokens: int = 64
    join_at: int = 0
    abort_after: int | None = None
    ignore_eos: bool = False
    temperature: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature, max_tokens=self.max_tokens, ignore_eos=self.ignore_eos, **self.extra
        )


@dataclass(frozen=True)
class Answer:
    """What a request got. `logprobs` holds vLLM's per-token dictionaries when the job asked for them."""

    tokens: tuple[int, ...]
    finish_reason: str | None
    text: str
    logprobs: Any = None

    @property
    def chosen_logprobs(self) -> list[float]:
        """Of its own tokens."""
        return [step[token].logprob for token, step in zip(self.tokens, self.logprobs, strict=True)]


@dataclass(frozen=True)
class Block:
    """One drafted block: K `tokens` after the token `anchor`, which is output number `position` (1 = the first)."""

    request: int
    position: int
    anchor: int
    tokens: tuple[int, ...]


class InProcessEngine:
    """A running engine. Use `engine(...)`, which also takes it down."""

    def __init__(self, args: EngineArgs) -> None:
        config = args.create_engine_config(UsageContext.LLM_CLASS)
        recorder = Recorder(config)
        self.config = config
        self.llm = LLMEngine(
            config,
            Executor.get_class(config),
            log_stats=True,
            stat_loggers=[lambda _config, _index: recorder],
            multiprocess_mode=False,
        )
        self._recorder = recorder
        self._serial = 0
        self.blocks: list[Block] = []
        self._outputs_of: dict[str, list[int]] = defaultdict(list)
        self._number_of: dict[str, int] = {}
        self.scheduled: list[Any] = []
        self._watch()

    @property
    def core(self) -> Any:
        """vLLM's EngineCore."""
        return self.llm.engine_core.engine_core  # type: ignore[attr-defined]

    @property
    def runner(self) -> Any:
        """The worker's model runner."""
        return self.core.model_executor.driver_worker.worker.model_runner

    @property
    def counters(self) -> Counters:
        """A copy of the sums so far; subtract an earlier one."""
        return self._recorder.counters.copy()

    @property
    def encoder(self) -> EncoderTotals:
        """What its encoder did."""
        return self._recorder.encoder

    @property
    def steps(self) -> list[StepStats]:
        """What the steps of the last `run` said about drafting."""
        return self._recorder.steps

    def run(
        self, jobs: Sequence[Job], max_steps: int = MAX_STEPS, lengths: Sequence[int] = ()
    ) -> list[Answer]:
        """Run all jobs to their end and return their answers in order.

        Args:
            lengths: draft lengths, a new one before every step, over and over; none leaves K as it is.

        Raises:
            AssertionError: not done after `max_steps` engine steps, which is how a hang shows.
        """
        self.blocks.clear()
        self.scheduled.clear()
        self.steps.clear()
        names = [f"job-{self._serial + i}" for i in range(len(jobs))]
        self._serial += len(jobs)
        internal: dict[str, str] = {}
        last: dict[str, RequestOutput] = {}
        waiting = sorted(range(len(jobs)), key=lambda i: jobs[i].join_at)
        step = 0
        while waiting or self.llm.has_unfinished_requests():
            assert step < max_steps, f"not finished after {max_steps} engine steps"
            if waiting and not self.llm.has_unfinished_requests():
                step = max(step, jobs[waiting[0]].join_at)
            while waiting and jobs[waiting[0]].join_at <= step:
                i = waiting.pop(0)
                internal[names[i]] = self.llm.add_request(
                    names[i], {"prompt_token_ids": list(jobs[i].prompt)}, jobs[i].params()
                )
                self._number_of[internal[names[i]]] = i
            if lengths:
                self.core.set_draft_length(lengths[step % len(lengths)])
            for output in self.llm.step():
                last[output.request_id] = output
            step += 1
            for i, job in enumerate(jobs):
                if (
                    job.abort_after is not None
                    and step == job.join_at + job.abort_after
                    and names[i] in internal
                ):
                    self.llm.abort_request([internal[names[i]]], internal=True)
        return [_answer(last.get(name)) for name in names]

    def _watch(self) -> None:
        """Record what the scheduler schedules and what the draft proposes, without changing either."""
        scheduler, runner = self.core.scheduler, self.runner
        schedule = scheduler.schedule

        def recording_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.scheduled.append(output)
            return output

        scheduler.schedule = recording_schedule
        if self.config.speculative_config is None or not hasattr(runner, "propose_draft_token_ids"):
            return  # the V2 runner proposes inside its step; there acceptance has to do
        propose = runner.propose_draft_token_ids

        def recording_propose(
            scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
        ) -> Any:
            drafted = propose(scheduler_output, sampled_token_ids, *args, **kwargs)
            self._record_blocks(sampled_token_ids, drafted)
            return drafted

        runner.propose_draft_token_ids = recording_propose

    def _record_blocks(self, sampled: torch.Tensor, drafted: torch.Tensor) -> None:
        for row, request in enumerate(self.runner.input_batch.req_ids):
            if request not in self._number_of:  # one of several samples
                continue
            outputs = self._outputs_of[request]
            outputs.extend(t for t in sampled[row].tolist() if t >= 0)
            self.blocks.append(
                Block(self._number_of[request], len(outputs), outputs[-1], tuple(drafted[row].tolist()))
            )

    def close(self) -> None:
        """Stop the engine and free its memory, so that the next one can start in this process."""
        self.core.shutdown()
        del self.llm
        cleanup_dist_env_and_memory()


def _answer(output: RequestOutput | None) -> Answer:
    if output is None:
        return Answer((), None, "")
    completion = output.outputs[0]
    return Answer(tuple(completion.token_ids), completion.finish_reason, completion.text, completion.logprobs)


@contextmanager
def engine(
    verifier: Path,
    draft: Path | None = None,
    k: int | None = None,
    *,
    short_block: bool = False,
    max_model_len: int = 256,
    max_encoder_len: int = 320,
    max_num_seqs: int = 4,
    enable_adaptive_verification: bool = False,
    **extra: Any,
) -> Iterator[InProcessEngine]:
    """A float32 eager engine, unless `extra`, which goes to `EngineArgs`, says otherwise.

    `short_block` drafts K tokens and no more; else the whole block, of which K are verified.
    """
    speculative: dict[str, Any] | None = None
    if draft is not None:
        speculative = {"model": str(draft), "method": "dflash", "num_speculative_tokens": k}
        speculative["short_block"] = short_block
        speculative["enable_adaptive_verification"] = enable_adaptive_verification
    args: dict[str, Any] = {
        "model": str(verifier),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max(1024, max_encoder_len, max_model_len),
        "hf_overrides": {"max_source_positions": max_encoder_len},
        "speculative_config": speculative,
        "kv_cache_memory_bytes": 256 << 20,
    }
    # vLLM's CPU platform keeps the worker inside the process only if both of these say so.
    # It also forbids torch.set_num_threads for good and warns at every use; that is undone here.
    logging.getLogger("vllm.v1.worker.cpu_worker").setLevel(logging.ERROR)
    set_num_threads = torch.set_num_threads
    with mock.patch.dict(os.environ, VLLM_ENABLE_V1_MULTIPROCESSING="0"):
        running = InProcessEngine(EngineArgs(**(args | {"distributed_executor_backend": "uni"} | extra)))
    try:
        yield running
    finally:
        running.close()
        torch.set_num_threads = set_num_threads
