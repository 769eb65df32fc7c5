"""The one way to replace a function of vLLM, and the error when vLLM no longer has it."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SUPPORTED = "0.32"


class HookError(RuntimeError):
    """vLLM no longer has what a hook replaces."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What stands in the place of a function of vLLM, and which parameters that has to have."""

    function: Any
    parameters: tuple[str, ...]
    optional: bool


REPLACED: dict[tuple[str, tuple[str, ...]], list[Replacement]] = {}
"""What was replaced in this process, by its module and its path in that, the innermost hook first."""


def replace(
    owner: Any, name: str, parameters: tuple[str, ...], make: Callable[[Any], Any], *, optional: bool = False
) -> None:
    """Replace `owner.name` by `make(stock)`, once; several hooks may do so, one around the other.

    Args:
        owner: a module or class of vLLM.
        name: its function.
        parameters: the names of the function's parameters, in order, that the replacement relies on. Another vLLM may
            have more of them, where the replacement passes on what it does not know.
        make: gets the stock function and returns the new one.
        optional: a vLLM without the function does not need the hook.

    Raises:
        HookError: `owner` has no such function, or one of other parameters.
    """
    where = f"{owner.__name__}.{name}"
    stock = getattr(owner, name, None)
    if stock is None and optional:
        return
    if stock is None:
        raise HookError(f"vLLM {SUPPORTED} has {where}, this vLLM has not: see plugin/vllm_hooks")
    before, hook = getattr(stock, "_t5gemma2", ()), f"{make.__module__}.{make.__qualname__}"
    if hook in before:
        return
    found, new = inspect.signature(stock), make(stock)
    if tuple(found.parameters) != parameters and not _passes_on(inspect.signature(new), found, parameters):
        raise HookError(
            f"{where} takes {tuple(found.parameters)}, but vLLM {SUPPORTED}'s takes {parameters}: see plugin/vllm_hooks"
        )
    inside = owner.__qualname__.split(".") if inspect.isclass(owner) else []
    at = owner.__module__ if inside else owner.__name__, (*inside, name)
    REPLACED.setdefault(at, []).append(Replacement(new, parameters, optional))
    new = functools.wraps(stock)(new)
    new._t5gemma2 = (*before, hook)  # type: ignore[attr-defined]
    # A class method arrives bound: the replacement is then called without the class.
    setattr(owner, name, staticmethod(new) if inspect.ismethod(stock) else new)


def _passes_on(own: inspect.Signature, found: inspect.Signature, parameters: tuple[str, ...]) -> bool:
    """Whether a replacement that relies on `parameters` may stand for a function with more of them: each has a default,
    none comes before those that the replacement takes by position, and it passes on all by name.
    """
    kinds = {parameter.kind for parameter in own.parameters.values()}
    positional = [p.name for p in own.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    more = [p for name, p in found.parameters.items() if name not in parameters]
    return (
        inspect.Parameter.VAR_KEYWORD in kinds
        and tuple(name for name in found.parameters if name in parameters) == parameters
        and list(found.parameters)[: len(positional)] == positional
        and all(p.default is not p.empty for p in more)
    )
