"""Hook into the executor of an engine with one worker, in the engine core's process."""

from concurrent.futures import Future
from typing import Any

from plugin.vllm_hooks.hook import replace

NOTHING: Future[None] = Future()
"""What the runner has to say of a step whose tokens are still to be sampled."""
NOTHING.set_result(None)


def steps_without_a_future_of_their_own() -> None:
    """The executor calls its worker's `execute_model` by name and puts what it returns, None in every step with tokens,
    into a new future with its lock. Here the worker is called, and the future is the same for all those steps.

    Unnecessary once vLLM calls a worker in its own process as plainly.
    """
    from vllm.v1.executor.uniproc_executor import AsyncOutputFuture, UniProcExecutor
    from vllm.v1.outputs import AsyncModelRunnerOutput

    def make(stock: Any) -> Any:
        def execute_model(self: Any, scheduler_output: Any, non_block: bool = False) -> Any:
            if not (non_block and self.vllm_config.model_config.is_encoder_decoder):
                return stock(self, scheduler_output, non_block)
            found = self.driver_worker.execute_model(scheduler_output)
            if found is None:
                return NOTHING
            if isinstance(found, AsyncModelRunnerOutput):
                return AsyncOutputFuture(found, single_value=True)
            future: Future[Any] = Future()
            future.set_result(found)
            return future

        return execute_model

    replace(UniProcExecutor, "execute_model", ("self", "scheduler_output", "non_block"), make)
