"""Hooks into the scheduler, in the engine core's process."""

import copy
from typing import Any

from plugin.vllm_hooks.adaptive_verification import leave_out_what_was_not_verified
from plugin.vllm_hooks.hook import replace


def metrics_of_whole_requests() -> None:
    """Three faults of speculative-decoding metrics.

    The scheduler sends them with the request's last output. A stop string is found later, in the front end, so that
    such a request ends without having sent any. Here a request with stop strings sends a copy with every output; the
    front end shows the last.

    They have what the request's drafts came to step by step, and nothing of the steps between them that verify none,
    since K was 0. Such a list tells neither which K were used nor, with the number of output tokens, how many of the
    last step's accepted tokens lie behind the output's end. Here it has every step after the first token.

    Drafts that adaptive verification left out count as rejected (`plugin.vllm_hooks.adaptive_verification`); here they
    are neither proposed nor rejected, in vLLM's own counters either.

    Unnecessary once vLLM sends them for requests that the front end may end, with all their steps, and knows what was
    verified.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    def make(stock: Any) -> Any:
        def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
            if self.is_encoder_decoder:
                _keep_steps_without_a_draft(self, scheduler_output, model_runner_output)
                leave_out_what_was_not_verified(scheduler_output, model_runner_output)
            found = stock(self, scheduler_output, model_runner_output)
            for outputs in found.values() if self.is_encoder_decoder else ():
                for output in outputs.outputs:
                    request = self.requests.get(output.request_id)
                    if request is None or output.spec_decode_metrics is not None:
                        continue
                    if request.spec_decode_metrics is not None and request.sampling_params.stop:
                        # A copy: the next step may add to it while this one is being sent.
                        output.spec_decode_metrics = copy.deepcopy(request.spec_decode_metrics)
            return found

        return update_from_output

    parameters = ("self", "scheduler_output", "model_runner_output")
    replace(Scheduler, "update_from_output", parameters, make)


def _keep_steps_without_a_draft(scheduler: Any, scheduler_output: Any, runner_output: Any) -> None:
    """As 0 of 0 tokens, beside the drafts of the requests' other steps."""
    sampled, drafts = runner_output.sampled_token_ids, scheduler_output.scheduled_spec_decode_tokens
    if scheduler.spec_decode_metrics_level != "detailed" or not sampled:
        return
    for name in scheduler_output.num_scheduled_tokens:
        request = scheduler.requests.get(name)
        if request is None or request.spec_decode_metrics is None or drafts.get(name):
            continue
        # The first token comes before any draft.
        if request.num_output_tokens and sampled[runner_output.req_id_to_index[name]]:
            request.spec_decode_metrics.per_step_accepted.append(0)
            request.spec_decode_metrics.per_step_drafted.append(0)
