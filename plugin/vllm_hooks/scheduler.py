"""Hooks into the scheduler, in the engine core's process."""

import copy
from typing import Any

from plugin.vllm_hooks.hook import replace


def metrics_before_a_stop_string() -> None:
    """The scheduler sends a request's speculative-decoding metrics with its last output. A stop string is found later,
    in the front end, so that such a request ends without having sent any. Here a request with stop strings sends a
    copy with every output; the front end shows the last.

    Unnecessary once vLLM sends them for requests that the front end may end.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    def make(stock: Any) -> Any:
        def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
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
