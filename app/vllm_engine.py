"""The module that starts vLLM: builds `AsyncLLM` from the plan and adapts it to the port.

vLLM is imported inside of functions, in the loading thread: the import alone takes seconds, and a server that cannot
answer /health meanwhile looks dead. Written against vLLM 0.32; of its interface only `AsyncEngineArgs`, `AsyncLLM`
(`renderer`, `generate`, `engine_core`, `check_health`, `do_log_stats`, `logger_manager`, `get_supported_tasks`,
`shutdown`), `SamplingParams`, `RequestOutput` and the stat loggers are used.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields
from typing import Any

from app.config_check import check_config, check_generation_config
from app.engine import (
    EngineDead,
    EngineFacts,
    EngineFailure,
    EnginePlan,
    GenerateRequest,
    InvalidRequest,
    RequestTiming,
    Sample,
    Sampling,
    SpecMetrics,
    Step,
    TokenLogprob,
)
from app.engine_arguments import engine_arguments
from app.process.cpu_process import cpu_build, openmp, placement
from app.text.hf_tokenizer import ThreadSafeTokenizer
from plugin.drafts.checkpoint import Checkpoints, fetch
from plugin.engine_process import METHOD, import_ahead
from plugin.quiet_logs import hide, hide_leaks_at_exit
from plugin.verifier.cpu_cache import cpu_cache_bytes

log = logging.getLogger("app.engine")

_SETTLE_S = 0.1
"""Between a step's outputs and vLLM's own account of it."""


def start(plan: EnginePlan) -> VllmEngine:
    """Downloads, loads and compiles; blocks for seconds to minutes. Any exception means that there is no engine."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    on_cpu = cpu_build()
    if openmp(on_cpu, plan.settings.data_parallel_size) or not on_cpu:
        import_ahead()
    os.environ.setdefault(METHOD, "spawn")
    verifier, draft = plan.identity.verifier, plan.identity.draft
    names = f"{verifier.name} with draft {draft.name}" if draft else verifier.name
    plan.progress("download", f"weights of {names} (nothing to do for local folders)")
    checkpoints = fetch(plan.identity.checkpoints)
    hide()
    hide_leaks_at_exit()
    plan.progress("import", "importing vLLM, up to two minutes from a cold disk")
    check_config(checkpoints.verifier)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.gc_utils import freeze_gc_heap
    from vllm.v1.engine.async_llm import AsyncLLM

    from app.drafts.stat_logger import count_into

    on_cpu = current_platform.is_cpu()
    arguments = engine_arguments(plan, checkpoints, on_cpu)
    with placement(on_cpu, plan.settings.data_parallel_size) as placed:
        config = AsyncEngineArgs(**arguments, **placed).create_engine_config(UsageContext.OPENAI_API_SERVER)
    if on_cpu and config.cache_config.kv_cache_memory_bytes is None:
        config.cache_config.kv_cache_memory_bytes = cpu_cache_bytes(config, plan.identity.max_encoder_len)
    check_generation_config(config.model_config, checkpoints.verifier)
    model, device = config.model_config, current_platform.device_type
    plan.progress("load", f"weights and K/V cache, {model.dtype} on {device}")
    if not model.enforce_eager:
        plan.progress("compile", "kernels, graphs, after the weights; about a minute, see vLLM's own lines")
    llm = AsyncLLM.from_vllm_config(
        config, usage_context=UsageContext.OPENAI_API_SERVER, stat_loggers=count_into(plan.ledger)
    )
    engine = VllmEngine(llm, plan.identity.max_encoder_len, checkpoints)
    # What was loaded stays; collections while serving need not look through it again.
    freeze_gc_heap()
    return engine


class VllmEngine:
    """`app.engine.Engine` over a running `AsyncLLM`."""

    def __init__(self, llm: Any, max_encoder_len: int, checkpoints: Checkpoints | None = None) -> None:
        from vllm.exceptions import VLLMClientError
        from vllm.renderers.inputs.preprocess import parse_model_prompt
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        self._llm = llm
        self._parse = parse_model_prompt
        self._upkeep: asyncio.Task[None] | None = None
        self._kinds = {True: RequestOutputKind.DELTA, False: RequestOutputKind.FINAL_ONLY}
        self._refused, self._dead = VLLMClientError, EngineDeadError
        model = llm.model_config
        self.tokenizer = ThreadSafeTokenizer(llm.get_tokenizer())
        self.facts = EngineFacts(
            vocab_size=model.get_vocab_size(),
            max_model_len=model.max_model_len,
            max_encoder_len=max_encoder_len,
            has_draft=llm.vllm_config.speculative_config is not None,
            dtype=str(model.dtype).removeprefix("torch."),
            end_ids=_end_ids(llm),
            default_sampling=model.get_diff_sampling_param(),
            checkpoints=checkpoints,
        )

    @asynccontextmanager
    async def uncounted(self) -> AsyncIterator[None]:
        """vLLM counts by handing each step's numbers to its stat loggers, Prometheus's and ours alike, after the step's
        outputs: the last step's, or that of a request which was cut off, is waited for. Nor does a client's prompt find
        encoder states that these requests left.
        """
        manager = self._llm.logger_manager
        loggers, manager.stat_loggers = manager.stat_loggers, []
        try:
            yield
            await self._llm.reset_encoder_cache()
        finally:
            await asyncio.sleep(_SETTLE_S)
            manager.stat_loggers = loggers

    async def set_draft_length(self, k: int) -> None:
        await self._call("set_draft_length", k)

    async def respond(self) -> None:
        await self._call("get_supported_tasks")

    async def _call(self, method: str, *arguments: Any) -> None:
        try:
            await self._llm.engine_core.call_utility_all_async(method, *arguments)
        except self._dead as error:
            raise EngineDead("the engine process ended") from error

    async def check_health(self) -> None:
        """The first call, which the gateway makes once it is ready, starts the engine's upkeep on its loop."""
        if self._upkeep is None:
            self._upkeep = asyncio.get_running_loop().create_task(self._keep())
        try:
            await self._llm.check_health()
        except self._dead as error:
            raise EngineDead("the engine process ended; its own lines above say why") from error

    def shutdown(self) -> None:
        from vllm.utils.async_utils import cancel_task_threadsafe

        # vLLM's own task first: it would take the end of the engine's process for its death, and log a traceback.
        for task in (self._upkeep, self._llm.output_handler):
            if task is not None:
                cancel_task_threadsafe(task)
        self._llm.shutdown()

    async def _keep(self) -> None:
        """Asks for the engine's tasks, which the first request would else wait for, then has the stat loggers write and
        empty their lists now and then, as vLLM's own server does. One failure does not end it: the lists would grow.
        """
        from vllm import envs

        try:
            await self._llm.get_supported_tasks()
        except self._dead:
            return
        except Exception:
            log.exception("the engine's tasks could not be asked; the first request asks again")
        while True:
            await asyncio.sleep(envs.VLLM_LOG_STATS_INTERVAL)
            try:
                await self._llm.do_log_stats()
            except Exception:
                log.exception("the engine's statistics could not be written")

    def _rendered(self, ids: Sequence[int]) -> Any:
        """The engine input of encoder ids. There is no text to tokenize, so it is made at once, on the loop, instead of
        in the renderer's one thread, where raw prompts would queue.
        """
        renderer = self._llm.renderer
        prompt = self._parse(self._llm.model_config, {"prompt_token_ids": list(ids)})
        (rendered,) = renderer.render_cmpl([prompt], renderer.default_cmpl_tok_params)
        return rendered

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        started = False
        try:
            outputs = self._llm.generate(
                self._rendered(request.encoder_ids),
                self._params(request.sampling, request.stream),
                request.id,
                session_id=request.session_id,
                trace_headers=request.trace_headers,
            )
            async with aclosing(outputs):
                async for output in outputs:
                    started = True
                    yield _step(output, request.sampling, len(request.encoder_ids))
        except self._refused as error:
            raise _refusal(error, request.sampling) from error
        except self._dead as error:
            raise EngineDead("the engine process ended") from error
        except Exception as error:
            raise _failure(error, request.sampling, started) from error

    def _params(self, sampling: Sampling, stream: bool) -> Any:
        from vllm.sampling_params import RepetitionDetectionParams, SamplingParams, StructuredOutputsParams

        values = {
            field.name: list(value)
            if isinstance(value := getattr(sampling, field.name), tuple | list)
            else value
            for field in fields(sampling)
        }
        if sampling.logprob_token_ids:
            values["logprobs"] = None
        if sampling.structured_outputs:
            values["structured_outputs"] = StructuredOutputsParams(**sampling.structured_outputs)
        if sampling.repetition_detection:
            values["repetition_detection"] = RepetitionDetectionParams(**sampling.repetition_detection)
        # vLLM makes them of its own `bad_words`, which stay empty: see `app.text.bad_words`.
        banned = values.pop("bad_words")
        params = SamplingParams.from_optional(**values, output_kind=self._kinds[stream], skip_clone=True)
        params._bad_words_token_ids = banned or None
        return params


def _end_ids(llm: Any) -> frozenset[int]:
    """The tokenizer's end token and the generation config's one or more, as vLLM takes them together."""
    named = llm.model_config.try_get_generation_config().get("eos_token_id")
    ids = {llm.renderer.get_eos_token_id(), *(named if isinstance(named, list) else [named])}
    return frozenset(ids - {None})


def _refusal(error: Exception, sampling: Sampling) -> InvalidRequest:
    """vLLM's own refusal, its first line; what names no parameter is about the constraint if there is one."""
    param = getattr(error, "parameter", None) or (
        "structured_outputs" if sampling.structured_outputs else None
    )
    return InvalidRequest(str(error.args[0]).strip().splitlines()[0][:500], param)


def _failure(error: Exception, sampling: Sampling, started: bool) -> Exception:
    """vLLM wraps whatever happens while a request is added; a constraint that its compiler refuses is the client's."""
    cause = error.__cause__ if type(error).__name__ == "EngineGenerateError" else error
    if not started and sampling.structured_outputs is not None and isinstance(cause, ValueError | TypeError):
        return InvalidRequest(str(cause).strip().splitlines()[0][:500], "structured_outputs")
    return EngineFailure(f"{type(cause).__name__}: {cause}")


def _step(output: Any, sampling: Sampling, prompt_tokens: int) -> Step:
    """A `RequestOutput` in the port's words. The plugin has the engine say as cache creation what the encoder ran over,
    which is the same for all samples of a request.
    """
    samples = [
        Sample(
            o.index,
            o.text,
            o.token_ids,
            None if sampling.logprobs is None else _logprobs(o, sampling),
            o.finish_reason,
            o.stop_reason,
            None if o.spec_decode_metrics is None else _spec(o.spec_decode_metrics),
        )
        for o in output.outputs
    ]
    timing = _timing(output.metrics) if output.finished and output.metrics is not None else None
    return Step(samples, output.finished, timing, prompt_tokens - output.num_cache_creation_tokens)


def _logprobs(output: Any, sampling: Sampling) -> Iterator[TokenLogprob]:
    """Each step's dictionary holds the chosen token first, then the alternatives by rank."""
    shown = len(sampling.logprob_token_ids or ()) or sampling.logprobs or 0
    for token_id, step in zip(output.token_ids, output.logprobs or (), strict=True):
        chosen = step[token_id]
        top = tuple((i, e.decoded_token or "", e.logprob) for i, e in list(step.items())[: shown + 1])
        yield TokenLogprob(token_id, chosen.decoded_token or "", chosen.logprob, top)


def _spec(found: Any) -> SpecMetrics:
    return SpecMetrics(**{field.name: getattr(found, field.name) for field in fields(SpecMetrics)})


def _timing(stats: Any) -> RequestTiming:
    """Differences of the engine's time stamps, where both were taken."""

    def between(begin: float, end: float) -> float | None:
        return end - begin if begin > 0 and end > 0 else None

    return RequestTiming(
        queue_s=between(stats.queued_ts, stats.scheduled_ts),
        first_token_s=between(stats.scheduled_ts, stats.first_token_ts),
        decode_s=between(stats.first_token_ts, stats.last_token_ts),
    )
