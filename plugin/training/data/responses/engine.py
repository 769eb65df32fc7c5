"""Answers by vLLM with the verifier, as it will be served, in a process of its own.

A process, because an engine in the trainer's would keep its memory, its threads and vLLM's process groups. It ends with
its last answer, and with the trainer. What it says goes to a log, whose end is shown when it fails.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from plugin.quiet_logs import hide
from plugin.training.data.pairs import DataError
from plugin.verifier.cpu_cache import cpu_cache_bytes

logger = logging.getLogger(__name__)

AT_ONCE_CPU: Final = 16
AT_ONCE_CUDA: Final = 128
_GPU_SHARE: Final = 0.85
"""Of the memory that is free when the engine starts, beside the trainer's own."""
_STEP_TOKENS: Final = 2048
_LOG_LINES: Final = 12


@dataclass(frozen=True, slots=True)
class EngineAnswers:
    """`Answers` by vLLM: the verifier in `folder`, prompts of at most `prompt_length` tokens; the engine's log goes to
    `log`. `at_once` is the size of a batch (None: as the device bears).
    """

    folder: str
    prompt_length: int
    log: Path
    on_cpu: bool
    at_once: int | None = None

    def __call__(self, prompts: Sequence[list[int]], max_new_tokens: int) -> Iterator[tuple[int, list[int]]]:
        """Raises `DataError` with the end of the log when the engine does not start, or ends too early."""
        logger.info(
            "starting vLLM with %s for %d responses; its log: %s", self.folder, len(prompts), self.log
        )
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        process = context.Process(
            target=_work, args=(self, list(prompts), max_new_tokens, theirs), daemon=True
        )
        process.start()
        theirs.close()
        left = len(prompts)
        try:
            while left:
                for answer in ours.recv():
                    left -= 1
                    yield answer
        except EOFError:
            process.join()
            raise DataError(
                f"vLLM ended with {process.exitcode} before the last response: {self._end_of_log()}"
            ) from None
        finally:
            ours.close()
            process.terminate()
            process.join()

    def _end_of_log(self) -> str:
        with self.log.open(encoding="utf-8", errors="replace") as file:
            lines = deque((line.strip() for line in file if line.strip()), _LOG_LINES)
        return " | ".join(lines) or f"{self.log} is empty"

    def arguments(self, max_new_tokens: int) -> dict[str, Any]:
        """vLLM's engine arguments: on the CPU in float32, which the trainer has the verifier in, too, and eager."""
        at_once = self.at_once or (AT_ONCE_CPU if self.on_cpu else AT_ONCE_CUDA)
        # The decoder's start token takes a position.
        length = 1 + max_new_tokens
        return {
            "model": self.folder,
            "dtype": "float32" if self.on_cpu else "bfloat16",
            "max_model_len": length,
            "max_num_seqs": at_once,
            "max_num_batched_tokens": max(_STEP_TOKENS, self.prompt_length, length, at_once),
            "hf_overrides": {"max_source_positions": self.prompt_length},
            "enforce_eager": self.on_cpu,
            "enable_prefix_caching": False,
            **({"distributed_executor_backend": "uni"} if self.on_cpu else {}),
        }


def _work(asked: EngineAnswers, prompts: list[list[int]], max_new_tokens: int, answers: Connection) -> None:
    """The process: an engine, stepped until the last prompt is answered."""
    # Ctrl-C is the trainer's, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(asked.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    # The engine within this process, which its memory and its end go with.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    hide()
    llm = _engine(asked, max_new_tokens)
    for batch in _stepped(llm, prompts, max_new_tokens):
        answers.send(batch)
    answers.close()
    # vLLM's teardown has nothing to save, and some of its threads outlive it.
    os._exit(0)


def _engine(asked: EngineAnswers, max_new_tokens: int) -> Any:
    import torch
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments = asked.arguments(max_new_tokens)
    if not asked.on_cpu:
        free, whole = torch.cuda.mem_get_info()
        arguments["gpu_memory_utilization"] = _GPU_SHARE * free / whole
    config = EngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS)
    if asked.on_cpu:
        config.cache_config.kv_cache_memory_bytes = cpu_cache_bytes(config, asked.prompt_length)
    return LLMEngine.from_vllm_config(config, usage_context=UsageContext.LLM_CLASS)


def _stepped(
    llm: Any, prompts: list[list[int]], max_new_tokens: int
) -> Iterator[list[tuple[int, list[int]]]]:
    """What each step finishes. Twice a batch is in the engine at any time, so that none of it idles."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    # What a request without fields of its own gets from the gateway, which reads the generation config as vLLM does:
    # of transformers' `generate` it knows repetition_penalty, but no `no_repeat_ngram_size`.
    defaults = llm.model_config.get_diff_sampling_param()
    chosen = {
        "temperature": 0.0, "max_tokens": max_new_tokens, "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }  # fmt: skip
    params = SamplingParams(**{**defaults, **chosen})
    waiting = iter(enumerate(prompts))
    room = 2 * llm.vllm_config.scheduler_config.max_num_seqs
    running = 0
    while True:
        while running < room and (found := next(waiting, None)) is not None:
            number, prompt = found
            llm.add_request(str(number), {"prompt_token_ids": prompt}, params.clone())
            running += 1
        if not running:
            return
        ended = [output for output in llm.step() if output.finished]
        running -= len(ended)
        if ended:
            yield [(int(output.request_id), list(output.outputs[0].token_ids)) for output in ended]
