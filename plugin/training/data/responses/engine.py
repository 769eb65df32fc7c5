"""Answers by vLLM with the verifier, as it will be served, in a process of its own.

A process, because an engine in the trainer's would keep its memory, its threads and vLLM's process groups. It ends with
its last answer, and with the trainer. What it says goes to a log, whose end is shown when it fails.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from plugin.package_environment import package_environment
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
_SECONDS_BETWEEN_LINES: Final = 10.0
_OF_TORCHRUN: Final = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE|NAME)$|MASTER_|TORCHELASTIC_")
"""What tells a process that it is one of several; the engine's is none of the trainer's."""


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
        self.log.parent.mkdir(parents=True, exist_ok=True)
        variables = package_environment().items()
        with tempfile.TemporaryFile("w+", encoding="utf-8") as asked, self.log.open("wb") as log:
            order = {"engine": asdict(self) | {"log": str(self.log)}, "max_new_tokens": max_new_tokens}
            asked.writelines(json.dumps(line) + "\n" for line in (order, *prompts))
            asked.seek(0)
            # A session of its own keeps Ctrl-C from it, which is the trainer's; its end is, too.
            process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in variables if not _OF_TORCHRUN.match(name)},
                start_new_session=True,
            )
        try:
            yield from self._answers(process, len(prompts))
        finally:
            process.kill()
            process.communicate()

    def _answers(self, process: subprocess.Popen[bytes], count: int) -> Iterator[tuple[int, list[int]]]:
        assert process.stdout is not None
        # vLLM's start takes a minute or more, and the first prompts theirs; its own lines say something of it.
        while not select.select([process.stdout], [], [], _SECONDS_BETWEEN_LINES)[0]:
            logger.info("waiting for the first response; vLLM: %s", self._end_of_log(1))
        for _ in range(count):
            line = process.stdout.readline()
            if not line:
                code = process.wait()
                raise DataError(f"vLLM ended with {code} before the last response: {self._end_of_log()}")
            number, response = json.loads(line)
            yield number, response

    def _end_of_log(self, lines: int = _LOG_LINES) -> str:
        with self.log.open(encoding="utf-8", errors="replace") as file:
            last = deque((line.strip() for line in file if line.strip()), lines)
        return " | ".join(last) or "no line yet"

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


def _stepped(llm: Any, prompts: Iterable[list[int]], max_new_tokens: int) -> Iterator[tuple[int, list[int]]]:
    """(number of the prompt, response) as they end. The engine always has twice a batch, so that it never idles."""
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
        for output in llm.step():
            if output.finished:
                running -= 1
                yield int(output.request_id), list(output.outputs[0].token_ids)


def main() -> None:
    """The process: its first line of input is the order, every other one a prompt; its output are the answers."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where vLLM's own lines go
    # The engine within this process, which its memory and its end go with.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    hide()
    order = json.loads(sys.stdin.readline())
    asked = EngineAnswers(**order["engine"])
    llm = _engine(asked, order["max_new_tokens"])
    for answer in _stepped(llm, map(json.loads, sys.stdin), order["max_new_tokens"]):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # vLLM's teardown has nothing to save, and some of its threads outlive it.
    answers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
