"""Hooks into the V2 model runner's sampling."""

from typing import Any

from plugin.vllm_hooks.hook import replace
from plugin.vllm_hooks.v2.runner import cross_kv_before_decoder
from plugin.vllm_hooks.v2.sampler_parameters import nothing_but_greedy, send_parameters

_VERDICT = "_t5gemma2_greedy"
"""Attribute of the runner: the slots of the last batch, a tensor, and whether all of its requests are plain greedy."""


def graphs_that_sample() -> None:
    """The V2 runner's graphs end with the hidden states. Behind a replay it launches the product with the vocabulary,
    ten programs that sample, and one that updates the requests. Here a decode graph goes on to the logits, and for a
    step of plain greedy requests to all of that (`plugin.vllm_hooks.v2.graph_sampling`).

    Not beside adaptive verification, whose batches are others in every step, and not beside other outputs of a step,
    which would be copied while the next replay overwrites them.

    Unnecessary once the runner's graphs sample.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def capturing(stock: Any) -> Any:
        def capture_model(self: Any, *, profile_only: bool = False) -> Any:
            alone = self.adaptive_verification is None and self.aux_output_connector is None
            if cross_kv_before_decoder(self) and alone:
                from plugin.vllm_hooks.v2.graph_sampling import GraphSampling

                self.cudagraph_manager.sampling = GraphSampling(
                    self, lambda batch: _will_be_plain(self, batch)
                )
            return stock(self, profile_only=profile_only)

        return capture_model

    def updating(stock: Any) -> Any:
        def postprocess_sampled(
            self: Any,
            idx_mapping: Any,
            sampled_tokens: Any,
            num_sampled: Any,
            num_rejected: Any,
            query_start_loc: Any = None,
        ) -> None:
            sampling = getattr(self.cudagraph_manager, "sampling", None)
            if sampling is None or not sampling.has_updated(sampled_tokens):
                stock(self, idx_mapping, sampled_tokens, num_sampled, num_rejected, query_start_loc)

        return postprocess_sampled

    replace(GPUModelRunner, "capture_model", ("self", "profile_only"), capturing)
    parameters = ("self", "idx_mapping", "sampled_tokens", "num_sampled", "num_rejected", "query_start_loc")
    replace(GPUModelRunner, "postprocess_sampled", parameters, updating)


def greedy_steps() -> None:
    """The V2 runner samples a step of greedy requests like any other, in eight to ten launches. Where every token of
    the step has its logits and all requests are plain greedy, its graph has done it, and without such a graph here it
    is two (`plugin.verifier.triton_greedy`). So it is in a step that admits requests: their one token each has its
    logits, too. Any other step is vLLM's, from the logits of its graph if that has computed them.

    Unnecessary once the runner has a way of its own for greedy batches.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.sample.output import SamplerOutput

    def make(stock: Any) -> Any:
        def sample(self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
            logits = _graphs_logits(self, hidden_states)
            if logits is not None:
                chosen = self.cudagraph_manager.sampling.output(input_batch)
                if chosen is None:
                    return _sample_of(self, stock, logits, input_batch, grammar_output)
                if grammar_output is not None:
                    raise RuntimeError(
                        "a grammar for a step that was said to have none: it is sampled already"
                    )
                return chosen, chosen.num_sampled, chosen.num_rejected
            if grammar_output is not None or not _plain_greedy(self, input_batch):
                send_parameters(self.sampler)
                return stock(self, hidden_states, input_batch, grammar_output)
            from plugin.verifier.triton_greedy import greedy

            batch, verifies = input_batch, input_batch.num_draft_tokens > 0
            rejection = self.rejection_sampler if verifies else None
            rates = None if rejection is None else rejection.synthetic_conditional_rates
            sampled, num_sampled, num_rejected = greedy(
                self.model.compute_logits(hidden_states[: batch.num_tokens]),
                batch.cu_num_logits,
                batch.input_ids,
                1 if rejection is None else 1 + rejection.num_speculative_steps,
                None if rates is None else (rates, batch.positions, batch.idx_mapping, _seeds(self)),
            )
            return SamplerOutput(sampled, None, None, num_sampled, num_rejected), num_sampled, num_rejected

        return sample

    replace(GPUModelRunner, "sample", ("self", "hidden_states", "input_batch", "grammar_output"), make)


def _seeds(runner: Any) -> Any:
    return runner.sampler.sampling_states.seeds.gpu


class _RowsOfLogits:
    """Stands for the model where the hidden states are logits already."""

    @staticmethod
    def compute_logits(rows: Any) -> Any:
        return rows


def _sample_of(runner: Any, stock: Any, logits: Any, input_batch: Any, grammar_output: Any) -> Any:
    """vLLM's `sample`, which picks the rows that it needs and takes them for hidden states."""
    send_parameters(runner.sampler)
    model, runner.model = runner.model, _RowsOfLogits
    try:
        return stock(runner, logits, input_batch, grammar_output)
    finally:
        runner.model = model


def _graphs_logits(runner: Any, hidden_states: Any) -> Any:
    """`[num_tokens, vocab_size]`, padding behind, if a graph has computed these states and their logits."""
    replayed = getattr(runner.cudagraph_manager, "replayed", None)
    if replayed is None or replayed.hidden_states is not hidden_states:
        return None
    return replayed.logits


def _will_be_plain(runner: Any, batch: Any) -> bool:
    """`_plain_greedy` of a batch that is about to run. A dummy batch has slots, too, but they are others'; a grammar
    comes only with the sampling, and the scheduler says whether there is one."""
    real = batch.req_ids[0] in runner.req_states.req_id_to_index
    return real and not batch.has_structured_output_reqs and _plain_greedy(runner, batch)


def _plain_greedy(runner: Any, batch: Any) -> bool:
    """Whether the step's tokens are the largest logits and nothing else is asked for. A batch whose slots are the last
    one's tensor (`plugin.vllm_hooks.v2.batches`) has the same requests."""
    if batch.logits_indices.shape[0] != batch.num_tokens:
        return False
    if batch.has_prefill and not _prefills_end(runner, batch):
        return False
    slots, verdict = getattr(runner, _VERDICT, (None, False))
    if slots is not batch.idx_mapping:
        verdict = (
            cross_kv_before_decoder(runner)
            and runner.batch_sharder is None
            and nothing_but_greedy(runner.sampler, batch.idx_mapping_np)
        )
        setattr(runner, _VERDICT, (batch.idx_mapping, verdict))
    return bool(verdict)


def _prefills_end(runner: Any, batch: Any) -> bool:
    """Whether all of a step's prefills end with it, so that each samples a token as a running request does, and nothing
    is asked for of the prompts, which vLLM computes from what the requests' state was before."""
    asked = runner.prompt_logprobs_worker
    if asked.token_id_scores or asked.uses_prompt_logprobs[batch.idx_mapping_np].any():
        return False
    done = batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens
    return bool((done >= batch.prefill_len_np).all())
