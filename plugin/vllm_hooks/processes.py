"""Hooks into how vLLM starts its processes."""

from typing import Any

from plugin import engine_process
from plugin.vllm_hooks.hook import replace


def from_the_fork_server() -> None:
    """The contexts in which vLLM starts engine cores, their coordinator and their workers: see
    `plugin.engine_process`, which says why, and what would make this unnecessary.
    """
    from vllm.v1.engine import coordinator, utils
    from vllm.v1.executor import multiproc_executor

    def make(stock: Any) -> Any:
        def get_mp_context() -> Any:
            return engine_process.context() or stock()

        return get_mp_context

    for module in (utils, coordinator, multiproc_executor):
        replace(module, "get_mp_context", (), make)
