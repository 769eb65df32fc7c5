"""What a decode graph does behind the model: logits, greedy tokens, the drafts that they accept, and the state of its
requests that follows. Launched one by one, each of it takes the host longer than the GPU."""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.worker.gpu.input_batch import post_update
from vllm.v1.worker.gpu.sample.output import SamplerOutput

from plugin.verifier.triton_greedy import greedy
from plugin.vllm_hooks.v2.step_tokens import HostCopy, StepTokens


class GraphSampled(SamplerOutput):
    """A step's tokens where its graph has put them; `sampling` copies them from there."""

    sampling: "GraphSampling"


class GraphSampling:
    """Captured by `plugin.verifier.decode_graphs`, for one V2 runner.

    A graph reads and writes the same places in every replay. Input ids, positions, the batch's bounds and its requests'
    state have them; its slots, and the seeds of synthetic acceptance, are copied to places of their own when the batch
    changes. Slot -1 is nobody's: of the graph's padding, of a dummy batch, and of every request in a batch that is
    sampled outside of the graph, whose logits are still the graph's.
    """

    def __init__(self, runner: Any, is_plain: Callable[[Any], bool]) -> None:
        """`is_plain` says, before a batch is run, whether its tokens will be the largest logits and nothing else is
        asked for."""
        self._runner, self.is_plain = runner, is_plain
        self._sizes = runner.max_num_reqs, 1 + runner.num_speculative_steps
        self._tokens = StepTokens.allocate(*self._sizes, device=runner.device)
        self.slots = torch.full((runner.max_num_reqs,), -1, dtype=torch.int64, device=runner.device)
        rejection = runner.rejection_sampler
        self._rates = None if rejection is None else rejection.synthetic_conditional_rates
        self._seeds = torch.zeros_like(self.slots)
        self._staged: torch.Tensor | None = None
        self._outputs: dict[int, GraphSampled] = {}
        self._given: GraphSampled | None = None
        self._copies: deque[HostCopy] = deque()

    def run(self, hidden_states: torch.Tensor, num_reqs: int) -> torch.Tensor:
        """Logits `[num_tokens, vocab_size]` of the batch in the runner's buffers, padding included; its tokens and the
        state of its requests, `num_reqs` at most, behind them."""
        runner = self._runner
        logits: torch.Tensor = runner.model.compute_logits(hidden_states)
        buffers, states, slots = runner.input_buffers, runner.req_states, self.slots[:num_reqs]
        bounds, tokens = buffers.query_start_loc[: num_reqs + 1], self._tokens.of(num_reqs)
        synthetic = None if self._rates is None else (self._rates, buffers.positions, slots, self._seeds)
        greedy(logits, bounds, buffers.input_ids, self._sizes[1], synthetic, tokens)
        post_update(
            slots, states.num_computed_tokens.gpu, states.last_sampled_tokens,
            runner.sampler.penalties_state.output_bin_counts, *tokens, bounds, states.all_token_ids.gpu,
            states.total_len.gpu,
        )  # fmt: skip
        return logits

    def reserve(self, num_tokens: int) -> None:
        """See `plugin.verifier.decode_graphs`."""
        config = self._runner.model_config
        torch.empty(num_tokens, self._runner.vocab_size, dtype=config.head_dtype, device=self._runner.device)

    def stage(self) -> None:
        """Before a replay: whose state it changes. Nothing is sent while the batch's slots are the same tensor (see
        `plugin.vllm_hooks.v2.batches`)."""
        batch = self._runner.model_state.batch
        slots = batch.idx_mapping if self.is_plain(batch) else None
        if slots is self._staged:
            return
        if slots is None:
            self.stage_nobody()
            return
        self.slots[len(slots) :].fill_(-1)
        self.slots[: len(slots)].copy_(slots)
        self.stand_staged(slots)

    def stand_staged(self, slots: torch.Tensor | None) -> None:
        """`self.slots` holds a plain batch's slots, or nobody's, by whoever wrote them there."""
        self._staged = slots
        if slots is not None and self._rates is not None:
            self._seeds.copy_(self._runner.sampler.sampling_states.seeds.gpu)

    def stage_nobody(self) -> None:
        """Before replays that are no step, as a benchmark's: no request's state changes."""
        self._staged = None
        self.slots.fill_(-1)

    def output(self, batch: Any) -> GraphSampled | None:
        """The tokens of `batch`, which has just been replayed; None if it was not plain."""
        if self._staged is not batch.idx_mapping:
            return None
        found = self._outputs.get(batch.num_reqs)
        if found is None:
            sampled, num_sampled, num_rejected = self._tokens.of(batch.num_reqs)
            found = GraphSampled(sampled, None, None, num_sampled, num_rejected)
            found.sampling, self._outputs[batch.num_reqs] = self, found
        self._given = found
        return found

    def has_updated(self, sampled_tokens: torch.Tensor) -> bool:
        """Whether these are the tokens that `output` gave last, for which the graph has updated the requests."""
        return self._given is not None and sampled_tokens is self._given.sampled_token_ids

    def begin_copy(self, stream: torch.cuda.Stream) -> HostCopy:
        """A copy of the last replay's tokens, begun in the current stream: the next replay, which is given to that
        stream, too, comes after it."""
        copy = self._copies.popleft() if self._copies else HostCopy(*self._sizes)
        copy.begin(self._tokens, stream)
        return copy

    def give_back(self, copy: HostCopy) -> None:
        """A copy that has been read."""
        self._copies.append(copy)
