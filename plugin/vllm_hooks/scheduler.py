"""Hooks into the scheduler, in the engine core's process."""

import copy
from typing import Any

from plugin.vllm_hooks.hook import replace


def no_placeholder_drafts() -> None:
    """When a request with exactly one token to compute joins a running batch, vLLM pads it with K placeholder drafts
    and counts them as rejected. T5Gemma 2's decoder prompt *is* one token, so every joining request would put K
    rejected drafts into the counters, and the same seed would give another text than alone.

    A schedule of draft tokens by batch size turns the padding off; ours says K for every size, which changes nothing
    else. Set here rather than in the speculative config, which vLLM drops under data parallelism and answers with
    piecewise graphs on the V1 runner. Unnecessary once vLLM tells placeholders from drafts.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    def make(stock: Any) -> Any:
        def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            stock(self, vllm_config, *args, **kwargs)
            if self.is_encoder_decoder and self.num_spec_tokens > 0 and self.dynamic_sd_lookup is None:
                self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)

        return init

    parameters = (
        "self",
        "vllm_config",
        "kv_cache_config",
        "structured_output_manager",
        "block_size",
        "hash_block_size",
        "mm_registry",
        "include_finished_set",
        "log_stats",
    )
    replace(Scheduler, "__init__", parameters, make)


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
