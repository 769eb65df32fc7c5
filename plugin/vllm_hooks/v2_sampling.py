"""Hook into the V2 model runner's sampling."""

from typing import Any

from plugin.vllm_hooks.hook import replace
from plugin.vllm_hooks.v2_runner import cross_kv_before_decoder

_VERDICT = "_t5gemma2_greedy"
"""Attribute of the runner: the slots of the last batch, a tensor, and whether all of its requests are plain greedy."""


def greedy_steps() -> None:
    """The V2 runner samples a step of greedy requests like any other, in eight to ten launches. Where every token of
    the step has its logits (no prefill) and all requests are plain greedy, here it is two
    (`plugin.verifier.triton_greedy`).

    Unnecessary once the runner has a way of its own for greedy batches.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.sample.output import SamplerOutput

    def make(stock: Any) -> Any:
        def sample(self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
            if grammar_output is not None or not _plain_greedy(self, input_batch):
                return stock(self, hidden_states, input_batch, grammar_output)
            from plugin.verifier.triton_greedy import greedy

            batch, verifies = input_batch, input_batch.num_draft_tokens > 0
            rates = self.rejection_sampler.synthetic_conditional_rates if verifies else None
            sampled, num_sampled, num_rejected = greedy(
                self.model.compute_logits(hidden_states[: batch.num_tokens]),
                batch.cu_num_logits,
                batch.input_ids,
                1 + self.num_speculative_steps if verifies else 1,
                None if rates is None else (rates, batch.positions, batch.idx_mapping, _seeds(self)),
            )
            return SamplerOutput(sampled, None, None, num_sampled, num_rejected), num_sampled, num_rejected

        return sample

    replace(GPUModelRunner, "sample", ("self", "hidden_states", "input_batch", "grammar_output"), make)


def _seeds(runner: Any) -> Any:
    return runner.sampler.sampling_states.seeds.gpu


def _plain_greedy(runner: Any, batch: Any) -> bool:
    """Whether the step's tokens are the largest logits and nothing else is asked for. A batch whose slots are the last
    one's tensor (`plugin.vllm_hooks.v2_batches`) has the same requests."""
    if batch.has_prefill or batch.logits_indices.shape[0] != batch.num_tokens:
        return False
    slots, verdict = getattr(runner, _VERDICT, (None, False))
    if slots is not batch.idx_mapping:
        verdict = _nothing_but_greedy(runner, batch.idx_mapping_np)
        setattr(runner, _VERDICT, (batch.idx_mapping, verdict))
    return bool(verdict)


def _nothing_but_greedy(runner: Any, slots: Any) -> bool:
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

    sampler = runner.sampler
    if not cross_kv_before_decoder(runner) or type(sampler) is not Sampler:
        return False
    if runner.batch_sharder is not None or sampler.trace_replay_state is not None:
        return False
    if sampler.compute_nans or sampler.return_sampling_mask or sampler.needs_logits_processing[slots].any():
        return False
    states = sampler.sampling_states
    wants = states.max_num_logprobs(
        slots
    ) != NO_LOGPROBS or sampler.logprob_token_ids_state.max_num_token_ids(slots)
    return not wants and not states.temperature.np[slots].any()
