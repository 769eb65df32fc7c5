"""The answer in one piece: every choice gathered, then one JSON body."""

from __future__ import annotations

from app.completions.choices import ChoiceWriter
from app.completions.reply import Choice, Completion, usage_of
from app.completions.run import Job, steps_of
from app.engine import Engine


async def completion(engine: Engine, job: Job, writer: ChoiceWriter, model: str, created: int) -> Completion:
    """Runs the job to its end. `created` is the Unix time of the request, seconds."""
    if job.sampling.max_tokens == 0:
        choices = writer.only_prompts()
    else:
        parts: dict[int, list[Choice]] = {}
        async with steps_of(engine, job) as steps:
            async for prompt, step in steps:
                for choice in writer.write(prompt, step):
                    parts.setdefault(choice.index, []).append(choice)
        choices = [_joined(parts[index]) for index in sorted(parts)]
    metrics = writer.metrics()
    answer = Completion(
        id=job.id,
        object="text_completion",
        created=created,
        model=model,
        choices=choices,
        usage=usage_of(job.prompt_tokens, writer.completion_tokens, metrics),
    )
    if metrics is not None:
        answer.metrics = metrics
    return answer


def _joined(parts: list[Choice]) -> Choice:
    """One choice out of its pieces: an engine may answer a whole request in several."""
    whole = parts[0]
    for part in parts[1:]:
        whole.text += part.text
        whole.finish_reason, whole.stop_reason = part.finish_reason, part.stop_reason
        if part.logprobs is not None and whole.logprobs is not None:
            for name in ("text_offset", "token_logprobs", "tokens", "top_logprobs"):
                getattr(whole.logprobs, name).extend(getattr(part.logprobs, name))
        if part.token_ids is not None:
            whole.token_ids = [*(whole.token_ids or ()), *part.token_ids]
        if part.metrics is not None:
            whole.metrics = part.metrics
    return whole
