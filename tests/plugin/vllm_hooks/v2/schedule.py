"""A scheduler's outputs without a scheduler, as a runner sees them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from tests.plugin.vllm_hooks.v2.fakes import BLOCK_SIZES, LENGTH, SLOTS, K

KINDS = ("join", "finish", "preempt", "k", "free", "pass", "few drafts", "skip", "structured", "order")


@dataclass
class Running:
    """A request as the scheduler knows it: its tokens so far, and blocks by cache group."""

    computed: int
    prefill: int
    drafts: int = 0
    blocks: tuple[int, ...] = (0, 0)


class Scheduling:
    """A scheduler's outputs for requests that join, leave, are preempted and go on, with drafts of a K that changes."""

    def __init__(self, seed: int) -> None:
        self.random, self.running, self.names = random.Random(seed), {}, 0
        self.waiting: dict[str, Running] = {}
        self.k, self.block = K, 1
        self.finished: set[str] = set()

    def _grow(self, request: Running, tokens: int) -> tuple[list[int], ...] | None:
        """Blocks for the request's next tokens, if some are missing."""
        new = []
        for group, size in enumerate(BLOCK_SIZES):
            wanted = -(-(request.computed + tokens + K) // size) - request.blocks[group]
            new.append(list(range(self.block, self.block + wanted)))
            self.block += max(wanted, 0)
        request.blocks = tuple(n + len(ids) for n, ids in zip(request.blocks, new, strict=True))
        return tuple(new) if any(new) else None

    def events(self) -> set[str]:
        """Something else than decoding, now and then."""
        if self.random.random() < 0.6:
            return set()
        return set(self.random.sample(KINDS, self.random.choice([1, 1, 2])))

    def step(self) -> SchedulerOutput:
        """The next step's output."""
        events = self.events()
        output = SchedulerOutput.make_empty()
        output.finished_req_ids, self.finished, output.preempted_req_ids = self.finished, set(), set()
        if "k" in events:
            self.k = self.random.choice([0, 1, K])
        if "free" in events:
            output.free_encoder_mm_hashes = ["prompt"]
        if "pass" in events:
            output.ec_manager_metadata = object()
        output.has_structured_output_requests = "structured" in events
        if "preempt" in events and self.running:
            name = self.random.choice(list(self.running))
            request = self.running.pop(name)
            output.preempted_req_ids = {name}
            self.waiting[name] = Running(0, request.computed + 1)
        elif self.waiting and len(self.running) < SLOTS and self.random.random() < 0.5:
            name = next(iter(self.waiting))
            self._admit(output, name, self.waiting.pop(name))
        if len(self.running) < SLOTS and ("join" in events or not self.running):
            self.names += 1
            self._admit(output, f"r{self.names}", Running(0, 1))
        if "order" in events:
            self.running = dict(reversed(self.running.items()))
        cached = output.scheduled_cached_reqs = CachedRequestData.make_empty()
        for name, request in self.running.items():
            if name in output.num_scheduled_tokens or ("skip" in events and self.random.random() < 0.3):
                continue
            drafts = request.drafts
            if "few drafts" in events:
                drafts = min(drafts, self.random.randint(0, K))
            output.num_scheduled_tokens[name] = 1 + drafts
            if drafts:
                output.scheduled_spec_decode_tokens[name] = [-1] * drafts
            cached.req_ids.append(name)
            cached.num_computed_tokens.append(request.computed)
            cached.num_output_tokens.append(request.computed)
            cached.new_block_ids.append(self._grow(request, 1 + drafts))
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        output.num_spec_tokens_to_schedule = self.k
        if "finish" in events and self.running:
            self.finished = {self.random.choice(list(self.running))}
        return output

    def _admit(self, output: SchedulerOutput, name: str, request: Running) -> None:
        blocks = self._grow(request, request.prefill)
        params = SimpleNamespace(max_tokens=50)
        tokens = [self.random.randrange(5, 99) for _ in range(request.prefill)]
        output.scheduled_new_reqs.append(
            NewRequestData(name, tokens[:1], [], params, None, blocks, 0, None, prefill_token_ids=tokens)
        )
        output.num_scheduled_tokens[name] = request.prefill
        self.running[name] = request

    def ended(self, output: SchedulerOutput, runners: list[Any]) -> None:
        """The device has accepted some of the drafts, and drafted K others."""
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.running[name]
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            taken = tokens - drafts + self.random.randint(0, drafts)
            request.computed += taken
            request.drafts = output.num_spec_tokens_to_schedule
            last, drafted = self.random.randrange(5, 99), [self.random.randrange(5, 99) for _ in range(K)]
            for each in runners:
                states = each.req_states
                slot = states.req_id_to_index[name]
                states.num_computed_tokens.gpu[slot] += taken
                states.last_sampled_tokens[slot] = last
                states.draft_tokens[slot] = torch.tensor(drafted)
        for name in [*self.finished, *(n for n, r in self.running.items() if r.computed > LENGTH - 3 * K)]:
            self.running.pop(name, None)
            self.finished.add(name)
