"""The V2 runner's speculators: vLLM's own, but for how they pick tokens, and with all of a step's draft in one graph.

vLLM's DSpark knows the vanilla Markov head; gated and rnn heads also read the backbone's states. Greedy drafts of all
families are picked in the draft's own vocabulary: vLLM's DFlash scatters the logits over the verifier's first, eight
times as many.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator
from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

from plugin.drafts.draft_tokens import DraftTokens


@dataclass(frozen=True, slots=True)
class Proposal:
    """How a batch is drafted for; the next step's way, too, if that has the same requests and as many tokens.

    Attributes:
        requests: the batch's, `[num_requests]`: the same object in the next step, if nothing changed.
        num_tokens: of the step.
        k: how many drafts are asked for.
        graph: of the manager's, what does all of it; None for vLLM's own way.
        drafted: `[num_requests, k]`, where the drafts will stand.
    """

    requests: torch.Tensor
    num_tokens: int
    k: int | None
    graph: Any
    drafted: torch.Tensor


class OneGraphSpeculator(DFlashSpeculator):
    """Between the verifier's graph and the next step one launch: the draft's graph.

    Before it replays that graph vLLM concatenates the verifier's taps, projects them, copies the result, prepares the
    block's inputs and blanks what stands behind the step's tokens, and its runner scatters the drafts: a launch each,
    and some thirty operations. Here the verifier's graph leaves the taps where the draft's reads them
    (`plugin.vllm_hooks.v2.runner`), and the graph begins with the inputs and ends with the scatter. They follow from
    what the runner keeps by request: the host only says which requests a batch has, when that changes.

    A step without a draft asked for (K = 0) writes its context K/V and drafts none, by graphs of its own. vLLM's runs
    its pass over the block there too, a third of the step, whose drafts nobody sees.

    Drafts that are not `in_graph` go vLLM's own way; so do eager steps, and steps with more tokens than a graph has
    room for, before the graph does its part. Unnecessary, but for the graphs of K = 0, once vLLM captures what comes
    before and behind a draft; 0.33's graph reads the taps, and its replay asks for them.
    """

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        super().__init__(vllm_config, device)
        self.req_states = req_states
        req_states.draft_tokens = req_states.draft_tokens.as_subclass(DraftTokens)
        self.idx_mapping.fill_(-1)  # by row of the batch its request; vLLM's DFlash does not use it
        self.context_cudagraph_manager: DFlashCudaGraphManager | None = None
        self._context_only = False
        self.followed: torch.Tensor | None = None  # whose `idx_mapping` is, by whoever wrote it
        self._last: Proposal | None = None

    @property
    def in_graph(self) -> bool:
        """Whether all that a draft reads stands in one place. Temperatures and seeds, which sampled drafts need, move;
        adaptive verification measures drafts of dummy batches, which have no requests."""
        return (
            self.draft_logits is None
            and not self.enable_adaptive_verification
            and self.pcp_manager is None
            and self.dcp_size == 1
        )

    def load_draft_model(
        self, target_model: torch.nn.Module, target_attn_layer_names: set[str]
    ) -> torch.nn.Module:
        draft = super().load_draft_model(target_model, target_attn_layer_names)
        projection = getattr(draft.model, "fc", None)
        # `[max_num_tokens, num_taps * hidden_size]`; DFlare's context is the taps themselves.
        self.taps: torch.Tensor = (
            self.hidden_states
            if projection is None
            else self.hidden_states.new_zeros(self.max_num_tokens, projection.input_size)
        )
        return draft

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        super().init_cudagraph_manager(cudagraph_mode)
        whole: Any = self.query_cudagraph_manager
        self.context_cudagraph_manager = DFlashCudaGraphManager(
            self.vllm_config, self.device, whole.cudagraph_mode, decode_query_len=self.num_query_per_req
        )

    def capture(self) -> None:
        self._follow(None)
        self._last, self._context_only = None, False
        super().capture()
        if self.in_graph and self.context_cudagraph_manager is not None:
            self.context_cudagraph_manager.capture(
                lambda *_: None, self.input_buffers, self.block_tables, self.attn_groups, self.kv_cache_config,
                self.max_model_len, self._group_causal, self._prepare_graph_forward,
                progress_bar_desc="Capturing CUDA graphs of the draft's context",
            )  # fmt: skip

    def propose(
        self,
        input_batch: Any,
        attn_metadata: dict[str, Any],
        slot_mappings: dict[str, torch.Tensor],
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        next_prefill_tokens: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        """Draft tokens `[num_reqs, block]`, or, where the runner's are written by then, the K that are asked for;
        `aux_hidden_states` are `[num_tokens, ...]` each, side by side the taps, padding behind."""
        assert aux_hidden_states
        num_tokens, k = input_batch.num_tokens, num_speculative_tokens
        if aux_hidden_states[0].data_ptr() != self.taps.data_ptr():  # no graph has left them there
            torch.cat([tap[:num_tokens] for tap in aux_hidden_states], dim=-1, out=self.taps[:num_tokens])
        self._context_only = k == 0
        ours = None
        if self.in_graph:
            self._follow(None if dummy_run else input_batch.idx_mapping)
            ours = None if dummy_run or is_profile else self._proposal(input_batch, k)
        if ours is not None and ours.graph is not None:
            manager: Any = self.context_cudagraph_manager if k == 0 else self.query_cudagraph_manager
            manager.run_fullgraph(ours.graph)
        else:
            drafted: torch.Tensor = super().propose(
                input_batch, attn_metadata, slot_mappings,
                self.hidden_states,  # which vLLM copies onto itself: nothing is launched
                None,
                num_sampled, num_rejected, last_sampled, next_prefill_tokens, temperature, seeds, dp_sync_state,
                dummy_run, skip_attn_for_dummy_run, mm_inputs, is_profile or self._context_only, k,
            )  # fmt: skip
        self.req_states.draft_tokens.written = None if ours is None else ours.requests
        return drafted if ours is None else ours.drafted

    def _follow(self, requests: torch.Tensor | None) -> None:
        """Have the graphs draft for `requests`, `[num_requests]` in the batch's order; None for a dummy batch's."""
        if requests is self.followed:
            return
        self.followed = requests
        count = 0
        if requests is not None:
            count = requests.shape[0]
            self.idx_mapping[:count].copy_(requests)
        self.idx_mapping[count:].fill_(-1)

    def _proposal(self, batch: Any, k: int | None) -> Proposal:
        last, requests = self._last, batch.idx_mapping
        if (
            last is None
            or last.requests is not requests
            or (last.num_tokens, last.k) != (batch.num_tokens, k)
        ):
            drafted = self.draft_tokens[: batch.num_reqs, :k]
            self._last = last = Proposal(requests, batch.num_tokens, k, self._graph(batch, k), drafted)
        return last

    def _graph(self, batch: Any, k: int | None) -> Any:
        """The graph that does all of a batch's draft, None where vLLM does something before it or there is none."""
        manager, length = self.query_cudagraph_manager, self.num_query_per_req
        if manager is None or self.dp_size > 1 or (k != 0 and not self.supports_decode_metadata_update):
            return None
        found = manager.dispatch(batch.num_reqs, batch.num_reqs * length, length, 0)
        if found.cg_mode != CUDAGraphMode.FULL:
            return None
        return found if batch.num_tokens <= self._num_graph_context_tokens(found.num_reqs) else None

    def _prepare_graph_forward(self, num_reqs: int, attn_metadata: dict[str, Any] | None) -> None:
        if self.in_graph:
            self._write_inputs(num_reqs)
        super()._prepare_graph_forward(num_reqs, attn_metadata)

    def _write_inputs(self, num_reqs: int) -> None:
        """What vLLM's `prepare_dflash_inputs` makes of a step, for a graph of `num_reqs` rows.

        A request in the midst of its prefill has its draft begin with another token than vLLM's: nobody verifies it.
        """
        from plugin.drafts.kernels.block_inputs import write_block_inputs

        block, step, tables = self.input_buffers, self.target_input_buffers, self.block_tables
        for i, group in enumerate(self.draft_kv_cache_group_ids):
            write_block_inputs(
                block.input_ids, block.positions, block.query_start_loc, block.seq_lens,
                tables.slot_mappings[group], self.context_positions,
                self._context_slot_mappings[i, : self._num_graph_context_tokens(num_reqs)],
                requests=self.idx_mapping[:num_reqs], computed=self.req_states.num_computed_tokens.gpu,
                sampled=self.req_states.last_sampled_tokens, step_positions=step.positions,
                step_starts=step.query_start_loc, block_table=tables.input_block_tables[group],
                block_size=tables.block_sizes[group], query_len=self.num_query_per_req,
                mask_id=self.parallel_drafting_token_id, max_model_len=self.max_model_len,
            )  # fmt: skip

    def _precompute_context_kv(self, start: int, end: int, dummy_run: bool = False) -> None:
        """vLLM's, of the taps in rows `start` to `end`; it is captured, and run for what goes beyond a graph."""
        if self.taps is not self.hidden_states:
            self.model.project_taps(self.taps[start:end], self.hidden_states[start:end])
        super()._precompute_context_kv(start, end, dummy_run)

    def _generate_draft(
        self,
        num_reqs: int,
        num_tokens_padded: int,
        attn_metadata: dict[str, Any] | None,
        slot_mappings: dict[str, torch.Tensor] | None,
        num_tokens_across_dp: torch.Tensor | None,
        cudagraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE,
    ) -> None:
        if self._context_only:
            return
        given = attn_metadata, slot_mappings, num_tokens_across_dp, cudagraph_runtime_mode
        if not self.in_graph:
            super()._generate_draft(num_reqs, num_tokens_padded, *given)
            return
        from plugin.drafts.kernels.block_inputs import store_drafts

        self._sample(num_reqs, self._run_model(num_tokens_padded, *given))
        store_drafts(self.draft_tokens[:num_reqs], self.idx_mapping[:num_reqs], self.req_states.draft_tokens)

    def _blocks(self, num_reqs: int, states: torch.Tensor) -> torch.Tensor:
        """`[num_tokens, hidden_size]` -> `[num_reqs, block's slots, hidden_size]`, without what pads a graph."""
        length = self.num_query_per_req
        return states[: num_reqs * length].unflatten(0, (num_reqs, length))

    def _sample(self, num_reqs: int, states: torch.Tensor) -> None:
        """Greedy drafts into `draft_tokens` from normed backbone states `[num_tokens, hidden_size]`, padding behind."""
        raise NotImplementedError


class BlockSpeculator(OneGraphSpeculator):
    """DFlash and DFlare."""

    def _sample(self, num_reqs: int, states: torch.Tensor) -> None:
        steps, model = self.num_speculative_steps, self.model
        predicting = self._blocks(num_reqs, states)[:, -steps:]
        picked = model.pick(model.compute_draft_logits(predicting.flatten(0, 1)))
        self.draft_tokens[:num_reqs] = picked.view(num_reqs, steps)


class MarkovSpeculator(OneGraphSpeculator, DSparkSpeculator):
    """DSpark with any of the three Markov heads."""

    _speculator_name = "DSpark"

    def _sample(self, num_reqs: int, states: torch.Tensor) -> None:
        self._sample_sequential(num_reqs, states)

    def _sample_sequential(self, num_reqs: int, head_hidden: torch.Tensor) -> None:
        """Sample the block of each request left to right into `draft_tokens`.

        Args:
            num_reqs: requests in the batch, padding of a captured graph included.
            head_hidden: `[num_tokens, hidden_size]`, normed backbone states.
        """
        steps, model = self.num_speculative_steps, self.model
        # The slots that predict are the last ones of each block: slices, where vLLM gathers rows by their indices.
        blocks = self._blocks(num_reqs, head_hidden)
        length = blocks.shape[1]
        hidden = blocks[:, length - steps :]
        anchors = self.input_buffers.input_ids[: num_reqs * length].view(num_reqs, length)[:, 0]
        tokens = self.draft_tokens[:num_reqs]
        greedy = self.draft_logits is None and self.acceptance_estimator is None
        if not (greedy and model.pick_block(hidden, anchors, tokens)):
            slots = self.sample_idx_mapping[: num_reqs * steps].view(num_reqs, steps)
            positions = self.sample_pos[: num_reqs * steps].view(num_reqs, steps)

            def pick(logits: torch.Tensor, bias: torch.Tensor, step: int) -> torch.Tensor:
                picked: torch.Tensor = model.pick(logits, bias)
                return picked

            def sample(logits: torch.Tensor, bias: torch.Tensor, step: int) -> torch.Tensor:
                return self._sample_logits(logits + bias, slots[:, step], positions[:, step], step)

            tokens[:] = model.sample_block(
                hidden,
                None if self.sample_from_anchor else blocks[:, 0],
                anchors.long(),
                pick if greedy else sample,
            )
        if self.use_confidence_head:
            previous = torch.cat((anchors[:, None], tokens[:, :-1]), dim=1)
            embedded = model.model.markov_head.embed(previous)
            confidence = model.compute_confidence(hidden.flatten(0, 1), embedded.flatten(0, 1))
            self.draft_token_confidence_probs[:num_reqs] = confidence.view(num_reqs, steps)
