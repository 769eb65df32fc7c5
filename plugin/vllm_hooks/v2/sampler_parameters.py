"""Hooks into when the V2 runner sends sampling parameters to the device, of which plain greedy requests need none."""

from collections.abc import Sequence
from typing import Any

from plugin.vllm_hooks.hook import replace
from plugin.vllm_hooks.v2.runner import cross_kv_before_decoder

_ADDED = "_t5gemma2_added"
"""Attribute of a sampler: the requests that are being added, where their parameters may wait."""

_WAIT = "_t5gemma2_wait"
"""Attribute of a sampler: whether some request's parameters have not been sent."""


def parameters_where_they_are_read() -> None:
    """The V2 runner sends the sampling parameters of all request slots, 15 arrays, to the device in every step. They
    are written where a request is added and nowhere else, and nobody reads those of requests that are plain greedy
    while a graph, or two launches, choose their tokens: here they are sent with the next request that is not plain, or
    before vLLM samples.

    Unnecessary once the runner sends what has changed, to who reads it.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    def adding(stock: Any) -> Any:
        def add_requests(self: Any, scheduler_output: Any) -> None:
            new = scheduler_output.scheduled_new_reqs
            if not cross_kv_before_decoder(self):
                stock(self, scheduler_output)
                return
            if not new:
                return
            if _nobody_reads_greedy_ones(self):
                self.sampler.__dict__[_ADDED] = [each.req_id for each in new]
            stock(self, scheduler_output)

        return add_requests

    def sending(stock: Any) -> Any:
        def apply_staged_writes(self: Any) -> None:
            added, indices = self.__dict__.pop(_ADDED, None), self.req_states.req_id_to_index
            if added is not None and nothing_but_greedy(self, [indices[name] for name in added]):
                self.__dict__[_WAIT] = True
                return
            self.__dict__[_WAIT] = False
            stock(self)

        return apply_staged_writes

    replace(GPUModelRunner, "add_requests", ("self", "scheduler_output"), adding)
    replace(Sampler, "apply_staged_writes", ("self",), sending)


def send_parameters(sampler: Any) -> None:
    """Before vLLM samples."""
    if sampler.__dict__.get(_WAIT, False):
        sampler.apply_staged_writes()


def _nobody_reads_greedy_ones(runner: Any) -> bool:
    """Whether nothing but vLLM's sampling reads the parameters of plain greedy requests: no draft that is sampled, no
    acceptance that is drawn."""
    rejection, draft = runner.rejection_sampler, runner.speculator
    return (
        runner.batch_sharder is None
        and (rejection is None or rejection.synthetic_conditional_rates is None)
        and (draft is None or getattr(draft, "in_graph", False))
    )


def nothing_but_greedy(sampler: Any, slots: Sequence[int]) -> bool:
    """Whether the tokens of the requests in these slots are the largest logits, and nothing else is asked for."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

    if type(sampler) is not Sampler or sampler.trace_replay_state is not None:
        return False
    if sampler.compute_nans or sampler.return_sampling_mask or sampler.needs_logits_processing[slots].any():
        return False
    states, ids = sampler.sampling_states, sampler.logprob_token_ids_state
    if states.max_num_logprobs(slots) != NO_LOGPROBS or ids.max_num_token_ids(slots):
        return False
    return not states.temperature.np[slots].any()
