"""Which encoder states the worker keeps, and how much encoder work a step may do: decided in the scheduler.

vLLM has the scheduler's encoder cache manager decide what the worker's cache holds; for encoder-decoder models its own
manager keeps nothing. This one keeps the states of whole prompts by a hash of their ids, the least recently used out
first. A request whose prompt is held writes its cross keys and values from the held states, and the encoder does not
run; while another request of the same prompt runs, it shares that one's pages instead and writes nothing
(`plugin.vllm_hooks.cross_pages`). Every replica of the engine has its own scheduler and worker, hence its own cache.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.metrics.stats import PrefillStats

from plugin.encoder_counts import EncoderCounts
from plugin.verifier.encoder.capture import pass_graph_sizes
from plugin.verifier.encoder.work import LAUNCH_S, EncoderWork, PassCosts
from plugin.verifier.processing import MODALITY

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request


def keeps_states(vllm_config: "VllmConfig") -> bool:
    """Whether encoder states stay in the worker from step to step."""
    return bool(vllm_config.ec_manager_config.manager_config.get("cache_bytes"))


class EncodedPrefill(PrefillStats):
    """A request's prefill numbers, whose `num_cache_creation_tokens` are the encoder tokens computed on its account:
    vLLM's own are those of the decoder's prompt that went into a prefix cache, which there is none of.
    """

    def __init__(self, stock: PrefillStats, encoded: int) -> None:
        super().__init__(**{name: getattr(stock, name) for name in PrefillStats.__dataclass_fields__})
        self._encoded = encoded

    def finalize(self, num_cached_tokens: int) -> None:
        self.num_cache_creation_tokens = self._encoded


class CrossPages(Protocol):
    """See `plugin.vllm_hooks.cross_pages`."""

    def share(self, holder: str, taker: str) -> None: ...

    def give_back(self, taker: str) -> None: ...


@dataclass(slots=True)
class _Pass:
    """The encoder pass that is under way: of which prompt, for which request, and the rows done so far."""

    key: str
    request_id: str
    length: int
    rows_done: int = 0


class PromptCacheManager(EncoderCacheManager):
    """vLLM's interface, called by the scheduler; `plugin.verifier.config` puts it in place.

    `share_pages` or else `can_allocate` is asked for the prompt at the head of the queue, after the latter `allocate`
    follows if the request is admitted; at the end of a step `get_freed_mm_hashes` and `get_manager_metadata` are what
    goes to the worker, which lets the freed states go before it does anything else.
    """

    def __init__(
        self, step_tokens: int, busy_step_tokens: int, cache_bytes: int, token_bytes: int, costs: PassCosts
    ) -> None:
        """
        Args:
            step_tokens: encoder work of a step at most, in tokens; no prompt is longer.
            busy_step_tokens: the same of a step beside running requests. A longer prompt is encoded over several steps.
            cache_bytes: states held from step to step at most, 0 for none: then pages are not shared either.
            token_bytes: of one token's state.
            costs: of the parts of a long prompt's pass.
        """
        self._step_tokens, self._busy_step_tokens = step_tokens, min(step_tokens, busy_step_tokens)
        self._cache_bytes, self._token_bytes, self._costs = cache_bytes, token_bytes, costs
        self._running: dict[str, str] = {}
        """Requests that were admitted, and for whom the prompt of each was encoded."""
        self._held: OrderedDict[str, tuple[int, str]] = OrderedDict()
        """By the prompt's identity: its tokens, and for whom it was encoded."""
        self.counts = EncoderCounts()
        super().__init__(cache_size=0)
        self.reset()

    @classmethod
    def create_manager(cls, *, cache_size: int, vllm_config: "VllmConfig") -> "PromptCacheManager":
        from vllm.platforms import current_platform

        config = vllm_config.model_config.hf_config
        given = vllm_config.ec_manager_config.manager_config
        busy_step_tokens = given.get("busy_step_tokens") or cache_size
        token_bytes = config.encoder.text_config.hidden_size * vllm_config.model_config.dtype.itemsize
        costs = PassCosts(
            config.encoder.text_config,
            config.decoder,
            busy_step_tokens,
            pass_graph_sizes(vllm_config),
            launch_s=LAUNCH_S if current_platform.is_cuda() else 0.0,
        )
        return cls(cache_size, busy_step_tokens, given.get("cache_bytes", 0), token_bytes, costs)

    def reset(self) -> None:
        """Forget every state: the worker has forgotten them, too. What running requests have in their pages is of
        other weights than what comes.
        """
        self._held.clear()
        self._holders: dict[str, list[str]] = {}
        """By the prompt's identity: running requests that have its cross keys and values in their pages."""
        self._sharing: dict[str, tuple[Request, str, CrossPages]] = {}
        """Requests that took over pages in this step, and for whom their prompt was encoded."""
        self._passing: dict[str, str] = {}
        """Prompts encoded in this step that are not to be held, and for whom."""
        self._used: set[str] = set()
        self._read_last: list[str] = []
        """What the step before was the last to read."""
        self._pass: _Pass | None = None
        self._work: EncoderWork | None = EncoderWork(None)
        self._left: float | None = None
        """Tokens that this step may still encode."""
        self.counts.bytes_held = 0

    def share_pages(self, request: "Request", pages: CrossPages) -> bool:
        """Whether the request has taken over the pages of a running one of the same prompt: it brings no encoder input,
        as what is written for the other is all that it reads.
        """
        key = request.mm_features[0].identifier
        holders = self._holders.get(key)
        if not self._cache_bytes or not holders:
            return False
        pages.share(holders[0], request.request_id)
        self._sharing[request.request_id] = request, self._running[holders[0]], pages
        return True

    def can_allocate(
        self,
        request: "Request",
        input_id: int,
        encoder_compute_budget: int,
        num_embeds_to_schedule: int,
    ) -> bool:
        """Whether the request can have its encoder states in this step, and its cross keys and values beside what else
        the step encodes. If not, it may do a part of its pass.
        """
        key, length = request.mm_features[input_id].identifier, request.get_num_encoder_embeds(input_id)
        limit = self._busy_step_tokens if self._running else self._step_tokens
        if self._left is None:
            self._left = limit
        writes = self._left == limit or self._costs.cross(length) <= self._left
        if key in self._held or key in self._passing:
            return writes
        if self._left <= 0:
            return False
        if self._pass is None or self._pass.key != key:
            if length <= self._left:
                return True
            if length <= limit or self._left < limit:
                return False  # the next step has room
            self._pass = _Pass(key, request.request_id, length)
        done, end = self._pass.rows_done, self._costs.num_rows(length)
        if done == end:
            return writes
        if self._left < limit:
            return False  # a part is a step's share
        rows = self._costs.fit(length, done, self._left)
        if done + rows == end and (self._costs.last(length, done) <= self._left or not self._running):
            return True
        self._work = self._part(self._pass, request, input_id, rows)
        self._pass.rows_done += rows
        self._left = 0
        return False

    def allocate(self, request: "Request", input_id: int) -> None:
        """The request is admitted: with states that are there, or with those of its prompt's (last part of a) pass."""
        assert self._left is not None
        key, length = request.mm_features[input_id].identifier, request.get_num_encoder_embeds(input_id)
        whole = _whole(request)
        if key in self._held:
            self._held.move_to_end(key)
            encoded_for = self._held[key][1]
        else:
            encoded_for = self._passing.get(key, "")
        if encoded_for:
            self.counts.hits += 1
            self.counts.tokens_saved += length
        else:
            encoded_for = whole
            self._encode(key, length, request, input_id)
            if length * self._token_bytes > self._cache_bytes:
                self._passing[key] = whole
            else:
                self._held[key] = length, whole
                self.counts.bytes_held += length * self._token_bytes
        self._left -= self._costs.cross(length)
        self._used.add(key)
        self._admit(request, encoded_for)

    def _admit(self, request: "Request", encoded_for: str) -> None:
        feature = request.mm_features[0]
        self._running[request.request_id] = encoded_for
        self._holders.setdefault(feature.identifier, []).append(request.request_id)
        if request.prefill_stats is not None:
            computed = request.get_num_encoder_embeds(0) if encoded_for == _whole(request) else 0
            request.prefill_stats = EncodedPrefill(request.prefill_stats, computed)

    def _encode(self, key: str, length: int, request: "Request", input_id: int) -> None:
        assert self._left is not None
        if self._pass is not None and self._pass.key == key:
            if rest := self._costs.num_rows(length) - self._pass.rows_done:
                self._work = self._part(self._pass, request, input_id, rest)
                self._left = 0
            self._pass = None
        else:
            self._left -= length
        self.counts.misses += 1
        self.counts.tokens_encoded += length

    def _part(self, under_way: _Pass, request: "Request", input_id: int, rows: int) -> EncoderWork:
        prompt = None
        if under_way.rows_done == 0:
            data = request.mm_features[input_id].data
            assert data is not None
            prompt = data[MODALITY].data
        return EncoderWork(under_way.key, prompt, under_way.rows_done, rows)

    def free(self, request: "Request") -> None:
        """The request ended, was preempted, or could not be admitted after all."""
        if request.request_id in self._sharing:
            _, _, pages = self._sharing.pop(request.request_id)
            pages.give_back(request.request_id)
        if self._running.pop(request.request_id, None) is not None:
            key = request.mm_features[0].identifier
            others = [name for name in self._holders.pop(key, ()) if name != request.request_id]
            if others:
                self._holders[key] = others
        if self._pass is not None and self._pass.request_id == request.request_id and request.is_finished():
            self._pass, self._work = None, EncoderWork(None)

    def free_encoder_input(self, request: "Request", input_id: int) -> None:
        """Nothing: states belong to prompts here, not to requests."""

    def get_freed_mm_hashes(self) -> list[str]:
        """What the worker lets go before the step that was just scheduled."""
        freed, self._read_last = self._read_last, list(self._passing)
        self._passing.clear()
        while self.counts.bytes_held > self._cache_bytes:
            key, (length, _) = self._held.popitem(last=False)
            self.counts.bytes_held -= length * self._token_bytes
            (self._read_last if key in self._used else freed).append(key)
        self._used.clear()
        return freed

    def get_manager_metadata(self) -> EncoderWork | None:
        """The step's part of a long prompt's pass, if any. Who shares pages in this step is admitted by now."""
        for request, encoded_for, _ in self._sharing.values():
            self.counts.hits += 1
            self.counts.tokens_saved += request.get_num_encoder_embeds(0)
            self._admit(request, encoded_for)
        self._sharing.clear()
        work, self._work, self._left = self._work, None, None
        return work

    def take_counts(self) -> EncoderCounts:
        """What happened since the last call."""
        counts, self.counts = self.counts, EncoderCounts(bytes_held=self.counts.bytes_held)
        counts.requests = len(self._running)
        return counts


def _whole(request: "Request") -> str:
    """The request that a request is a sample of: vLLM names samples after the one that wants them."""
    return re.sub(r"^\d+_", "", request.request_id)
