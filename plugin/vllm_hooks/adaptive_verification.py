"""Hooks into vLLM's adaptive verification (V2 runner): the device, which decides, says what of a draft was verified.

With `enable_adaptive_verification` a step verifies the drafts that are the likeliest to be accepted, as many as its
costs allow, so that requests of one step verify different numbers of tokens. How many of all of them the host decides,
which of them the device, after the scheduler has given every request K.
"""

from typing import Any

from plugin.vllm_hooks.hook import replace

VERIFIED = "t5gemma2_verified"
"""Attribute of a `ModelRunnerOutput`: by request, how many drafts were verified; missing where all of them were."""


def verified_drafts_from_the_device() -> None:
    """The V2 runner tells the scheduler how many tokens each request has sampled, and nothing of the drafts that it
    left out. The scheduler then counts those as rejected, in vLLM's counters and in the request's own metrics. Here the
    numbers of rejected drafts, which the device has, travel with the sampled tokens.

    Unnecessary once vLLM's output says what was verified.
    """
    from vllm.v1.worker.gpu.async_utils import AsyncOutput, async_copy_to_np, stream
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def sampling(stock: Any) -> Any:
        def sample_tokens(self: Any, grammar_output: Any) -> Any:
            output = stock(self, grammar_output)
            if self.adaptive_verification is not None and isinstance(output, AsyncOutput):
                # The copy stream has waited for the sampler already; the event is recorded again behind this copy.
                with stream(self.output_copy_stream, self.main_stream):
                    output.num_rejected_np = async_copy_to_np(output.sampler_output.num_rejected)
                    output.copy_event.record(self.output_copy_stream)
            return output

        return sample_tokens

    def getting(stock: Any) -> Any:
        def get_output(self: Any) -> Any:
            output = stock(self)
            if (rejected := getattr(self, "num_rejected_np", None)) is not None:
                rows = zip(output.req_ids, output.sampled_token_ids, rejected.tolist(), strict=True)
                verified = {name: max(len(tokens) - 1, 0) + n for name, tokens, n in rows}
                setattr(output, VERIFIED, verified)
            return output

        return get_output

    replace(GPUModelRunner, "sample_tokens", ("self", "grammar_output"), sampling)
    replace(AsyncOutput, "get_output", ("self",), getting)


def leave_out_what_was_not_verified(scheduler_output: Any, runner_output: Any) -> None:
    """Before the scheduler counts a step: drafts that were not verified are no drafts, as those are none that a grammar
    refused. Both lie at a draft's end.
    """
    verified = getattr(runner_output, VERIFIED, None)
    if verified is None:
        return
    refused = scheduler_output.num_invalid_spec_tokens or {}
    invalid = dict(refused)
    for name, drafts in scheduler_output.scheduled_spec_decode_tokens.items():
        left_out = len(drafts) - verified.get(name, len(drafts))
        if left_out > refused.get(name, 0):
            invalid[name] = left_out
    scheduler_output.num_invalid_spec_tokens = invalid
