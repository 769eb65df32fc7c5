"""The one way to replace a function of vLLM, and the error when vLLM no longer has it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

SUPPORTED = "0.32"


class HookError(RuntimeError):
    """vLLM no longer has what a hook replaces."""


def replace(owner: Any, name: str, parameters: tuple[str, ...], make: Callable[[Any], Any]) -> None:
    """Replace `owner.name` by `make(stock)`, once.

    Args:
        owner: a module or class of vLLM.
        name: its function.
        parameters: the names of the function's parameters, in order, that the replacement relies on.
        make: gets the stock function and returns the new one.

    Raises:
        HookError: `owner` has no such function, or one of other parameters.
    """
    where = f"{owner.__name__}.{name}"
    stock = getattr(owner, name, None)
    if stock is None:
        raise HookError(f"vLLM {SUPPORTED} has {where}, this vLLM has not: see plugin/vllm_hooks")
    if getattr(stock, "_t5gemma2", False):
        return
    found = tuple(inspect.signature(stock).parameters)
    if found != parameters:
        raise HookError(
            f"{where} takes {found}, but vLLM {SUPPORTED}'s takes {parameters}: see plugin/vllm_hooks"
        )
    new = functools.wraps(stock)(make(stock))
    new._t5gemma2 = True  # type: ignore[attr-defined]
    # A class method arrives bound: the replacement is then called without the class.
    setattr(owner, name, staticmethod(new) if inspect.ismethod(stock) else new)
