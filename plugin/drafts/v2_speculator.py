"""The V2 runner's speculators: vLLM's own, but for how they pick tokens, and without a pass that nobody asked for.

vLLM's DSpark knows the vanilla Markov head; gated and rnn heads also read the backbone's states. Greedy drafts of all
families are picked in the draft's own vocabulary: vLLM's DFlash scatters the logits over the verifier's first, eight
times as many. The verifier's taps are projected where the context's keys are made. All of it is captured in the draft's
CUDA graph.
"""

from typing import Any

import torch
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator
from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator


class TappedSpeculator(DFlashSpeculator):
    """Between two graphs one launch: vLLM concatenates the verifier's taps, projects them and copies the result, each
    in a launch of its own, before it replays the draft's graph. Here they are concatenated where the graph reads them.
    """

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
        """Draft tokens `[num_reqs, K]`; `aux_hidden_states` are `[num_tokens, hidden_size]` each, padding behind."""
        assert aux_hidden_states
        num_tokens = input_batch.num_tokens
        torch.cat([tap[:num_tokens] for tap in aux_hidden_states], dim=-1, out=self.taps[:num_tokens])
        drafted: torch.Tensor = super().propose(
            input_batch, attn_metadata, slot_mappings,
            self.hidden_states,  # which vLLM copies onto itself: nothing is launched
            None,
            num_sampled, num_rejected, last_sampled, next_prefill_tokens, temperature, seeds, dp_sync_state, dummy_run,
            skip_attn_for_dummy_run, mm_inputs, is_profile, num_speculative_tokens,
        )  # fmt: skip
        return drafted

    def _precompute_context_kv(self, start: int, end: int, dummy_run: bool = False) -> None:
        """vLLM's, of the taps in rows `start` to `end`; it is captured, and run for what goes beyond a graph."""
        if self.taps is not self.hidden_states:
            self.hidden_states[start:end] = self.model.combine_hidden_states(self.taps[start:end])
        super()._precompute_context_kv(start, end, dummy_run)


class ContextAlways:
    """Beside a speculator of vLLM's: without a draft asked for, a step writes its context K/V and drafts none.

    vLLM's runs its pass over the block at K = 0 too, a third of a step whose drafts nobody sees. Its draft graphs hold
    both, so that such a step is an eager one, as a profiling run is. Unnecessary once vLLM leaves the pass out.
    """

    _context_only = False

    def propose(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Draft tokens `[num_requests, block]`, of which the runner takes K; see DFlashSpeculator."""
        self._context_only = kwargs.get("num_speculative_tokens") == 0
        if self._context_only:
            kwargs["is_profile"] = True
        drafted: torch.Tensor = super().propose(*args, **kwargs)  # type: ignore[misc]
        return drafted

    def _generate_draft(self, *args: Any, **kwargs: Any) -> None:
        if not self._context_only:
            super()._generate_draft(*args, **kwargs)  # type: ignore[misc]


class BlockSpeculator(ContextAlways, TappedSpeculator):
    """DFlash and DFlare."""

    def sample_draft(
        self,
        hidden_states: torch.Tensor,
        sample_src_positions: torch.Tensor,
        idx_mapping: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        draft_step: torch.Tensor,
        draft_logits: torch.Tensor | None,
        spec_step_idx: int = 0,
    ) -> torch.Tensor:
        """Draft tokens `[num_rows]` from normed backbone states `[num_rows, hidden_size]`."""
        model: Any = self.model
        if draft_logits is None and self.acceptance_estimator is None:
            picked: torch.Tensor = model.pick(model.compute_draft_logits(hidden_states))
            return picked
        sampled: torch.Tensor = super().sample_draft(
            hidden_states, sample_src_positions, idx_mapping, temperature, seeds, draft_step, draft_logits,
            spec_step_idx,
        )  # fmt: skip
        return sampled


class MarkovSpeculator(ContextAlways, TappedSpeculator, DSparkSpeculator):
    """DSpark with any of the three Markov heads."""

    _speculator_name = "DSpark"

    def _sample_sequential(self, num_reqs: int, head_hidden: torch.Tensor) -> None:
        """Sample the block of each request left to right into `draft_tokens`.

        Args:
            num_reqs: requests in the batch, padding of a captured graph included.
            head_hidden: `[num_tokens, hidden_size]`, normed backbone states.
        """
        steps, model = self.num_speculative_steps, self.model
        rows = num_reqs * steps
        hidden = head_hidden[self.sample_indices[:rows]].view(num_reqs, steps, -1)
        slots = self.sample_idx_mapping[:rows].view(num_reqs, steps)
        positions = self.sample_pos[:rows].view(num_reqs, steps)
        first = self._anchor_idx[:num_reqs]
        anchors = self.input_buffers.input_ids[first].long()
        greedy = self.draft_logits is None and self.acceptance_estimator is None

        def pick(logits: torch.Tensor, bias: torch.Tensor, step: int) -> torch.Tensor:
            picked: torch.Tensor = model.pick(logits, bias)
            return picked

        def sample(logits: torch.Tensor, bias: torch.Tensor, step: int) -> torch.Tensor:
            return self._sample_logits(logits + bias, slots[:, step], positions[:, step], step)

        tokens = model.sample_block(
            hidden,
            None if self.sample_from_anchor else head_hidden[first],
            anchors,
            pick if greedy else sample,
        )
        self.draft_tokens[:num_reqs] = tokens
        if self.use_confidence_head:
            previous = torch.cat((anchors[:, None], tokens[:, :-1]), dim=1)
            embedded = model.model.markov_head.embed(previous)
            confidence = model.compute_confidence(hidden.flatten(0, 1), embedded.flatten(0, 1))
            self.draft_token_confidence_probs[:num_reqs] = confidence.view(num_reqs, steps)
