"""Samples of the engine -> choices of the answer: echo, logprobs and token ids as the request asked, counts kept.

The JSON body and the event stream both go through this one class, so they cannot differ in what they say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from app.completions.metrics import RequestMetrics, request_metrics
from app.completions.reply import Choice, Completion, LogprobWriter, plain, usage_of, wire
from app.completions.request import CompletionRequest
from app.completions.run import Job
from app.config.settings import Level
from app.engine import RequestTiming, Sample, SpecMetrics, Step

_NO_CHOICES = b'"choices":[]'


class ChoiceWriter:
    """Writes the choices of one request and remembers what usage and metrics need."""

    def __init__(
        self, request: CompletionRequest, job: Job, level: Level, special_ids: Collection[int] = ()
    ) -> None:
        """`special_ids` are left out of the text if the request says so."""
        self._request = request
        self._job = job
        self._level = level
        as_ids = bool(request.return_tokens_as_token_ids)
        hidden = special_ids if request.skip_special_tokens else ()
        self._logprobs = [LogprobWriter(as_ids, hidden) for _ in range(job.choices)]
        self._opened: set[int] = set()
        self.spec: list[SpecMetrics] = []
        """Acceptance of the choices that have ended, by what their client received."""
        self._timing: RequestTiming | None = None
        self._with_ids = bool(request.return_token_ids)
        self._plain = not (request.echo or self._with_ids or request.logprobs is not None or job.choices > 1)
        self.tokens: list[int] = [0] * job.choices
        self.cached: dict[int, int] = {}
        """Tokens of each prompt, by its index, that were not encoded for this request, once they are known."""

    @property
    def completion_tokens(self) -> int:
        return sum(self.tokens)

    def write(self, prompt: int, step: Step) -> Iterator[tuple[int, bytes]]:
        """Choice index and JSON of each sample of the step that has something to say."""
        for index, sample in self._heard(prompt, step):
            yield index, plain(index, sample) if self._plain else wire(self._choice(prompt, index, sample))

    def _heard(self, prompt: int, step: Step) -> Iterator[tuple[int, Sample]]:
        """The samples that have something to say under their choice index; their numbers are kept."""
        self._timing = step.timing or self._timing
        if step.cached_tokens is not None:
            self.cached[prompt] = step.cached_tokens
        for sample in step.samples:
            if sample.token_ids or sample.text or sample.finish_reason is not None:
                index = prompt * self._job.sampling.n + sample.index
                self.tokens[index] += len(sample.token_ids)
                if sample.spec is not None:
                    sample.spec = sample.spec.received(self.tokens[index])
                    self.spec.append(sample.spec)
                yield index, sample

    def _choice(self, prompt: int, index: int, sample: Sample) -> Choice:
        choice = Choice.model_construct(
            index=index,
            text=sample.text,
            logprobs=None,
            finish_reason=sample.finish_reason,
            stop_reason=sample.stop_reason,
        )
        first = index not in self._opened
        self._opened.add(index)
        if sample.logprobs is not None:
            choice.logprobs = self._logprobs[index].write(sample.logprobs)
        if first and self._request.echo:
            choice.text = (self._job.prompts[prompt].text or "") + choice.text
        if self._with_ids:
            choice.token_ids = list(sample.token_ids)
            if first:
                choice.prompt_token_ids = list(self._job.prompts[prompt].ids)
        if self._job.choices > 1 and sample.spec is not None:
            metrics = request_metrics([sample.spec], self._level)
            if metrics is not None:
                choice.metrics = metrics
        return choice

    def body(self, choices: Sequence[bytes]) -> bytes:
        """The whole answer with these choices, when everything was written. They are not written here, all at once:
        many with logprobs are megabytes, and would hold up everybody.
        """
        head, none, tail = wire(self.last()).partition(_NO_CHOICES)
        return b"".join([head, none[:-1], b",".join(choices), b"]", tail])

    def last(self) -> Completion:
        """A stream's last chunk: usage and metrics, when everything was written."""
        metrics = self.metrics()
        usage = usage_of(self._job.prompt_tokens, self.completion_tokens, metrics, self.cached_tokens)
        optional = {} if metrics is None else {"metrics": metrics}
        return Completion(**self._job.head, choices=[], usage=usage, **optional)

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were not encoded for this request; None where that is not known."""
        return sum(self.cached.values()) if self.cached else None

    def metrics(self, level: Level | None = None) -> RequestMetrics | None:
        """The request's own metrics, when everything was written; at the request's level or another."""
        timing = self._timing if self._job.choices == 1 else None
        return request_metrics(self.spec, level or self._level, timing, self.completion_tokens)
