"""Hooks into what the V2 model runner copies in every step once its tokens are sampled."""

from typing import Any

import numpy as np

from plugin.vllm_hooks.hook import replace
from plugin.vllm_hooks.v2.runner import cross_kv_before_decoder

_COPY = "_t5gemma2_copy"
"""Attribute of an `AsyncOutput`: the copy of a graph's tokens."""


def tokens_in_one_copy() -> None:
    """The V2 runner copies a step's tokens and their numbers to the host one by one, each into pinned memory that it
    asks for anew, in a stream that first waits for the main one, behind an event that it makes. Tokens that a graph has
    chosen stand in one tensor: here one copy takes them, in the main stream, since the next replay writes there, into
    memory that is used again, with its event.

    Unnecessary once the runner does so.
    """
    from vllm.v1.worker.gpu.async_utils import AsyncOutput

    def beginning(stock: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            sampled = kwargs.get("sampler_output")
            sampling = getattr(sampled, "sampling", None)  # a `GraphSampled` has it
            if sampling is None:
                stock(self, *args, **kwargs)
                return
            self.model_runner_output, self.sampler_output = kwargs["model_runner_output"], sampled
            setattr(self, _COPY, sampling.begin_copy(kwargs["main_stream"]))

        return init

    def reading(stock: Any) -> Any:
        def get_output(self: Any) -> Any:
            copy = getattr(self, _COPY, None)
            if copy is None:
                return stock(self)
            output = self.model_runner_output
            output.sampled_token_ids = copy.read(len(output.req_ids))
            self.sampler_output.sampling.give_back(copy)
            return output

        return get_output

    parameters = (
        "self", "model_runner_output", "sampler_output", "num_sampled_tokens", "main_stream", "copy_stream",
        "check_ep_fault", "pending_aux_output",
    )  # fmt: skip
    replace(AsyncOutput, "__init__", parameters, beginning)
    replace(AsyncOutput, "get_output", ("self",), reading)


def drafts_that_stay_on_the_device() -> None:
    """The V2 runner fills a block behind its first K drafts with -1, puts it into the requests' state, and gathers what
    it has just put there. Only a grammar reads what it gathers, and nobody what it fills: a step verifies as many
    drafts as the step before asked for. Here a step without grammars does neither.

    Unnecessary once the runner looks who reads them.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def make(stock: Any) -> Any:
        def sample_tokens(self: Any, grammar_output: Any) -> Any:
            step, block = self.execute_model_state, self.num_speculative_steps
            if (
                step is None
                or block == 0
                or step.input_batch.has_structured_output_reqs
                or not cross_kv_before_decoder(self)
            ):
                return stock(self, grammar_output)
            self.num_speculative_steps = 0
            try:
                output = stock(self, grammar_output)
            finally:
                self.num_speculative_steps = block
            # Of drafts that nobody reads it keeps how many there are.
            self.draft_tokens_handler.set_draft_tokens(
                step.input_batch, np.empty((0, step.num_spec_tokens_to_schedule))
            )
            return output

        return sample_tokens

    replace(GPUModelRunner, "sample_tokens", ("self", "grammar_output"), make)
