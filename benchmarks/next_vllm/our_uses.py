"""Every use of vLLM in this project: what its sources show, and what the hooks and the quiet logs say themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.next_vllm import signatures
from benchmarks.next_vllm.source_tree import SourceTree
from benchmarks.next_vllm.uses import Address, Reader, Use
from plugin import quiet_logs

ROOT = Path(__file__).parents[2]
HOUSES = ("app", "plugin", "benchmarks")
CHECKPOINTS = ROOT / "plugin" / "demo"


def read_uses(vllm: Path) -> tuple[list[Use], dict[Address, Address]]:
    """What our modules use of the vLLM whose package stands in the folder `vllm`, and where else they look first."""
    ours = SourceTree(dict.fromkeys(HOUSES, ROOT))
    tree = SourceTree({**ours.packages, "vllm": vllm})
    modules = [module for module, path in ours.modules() if CHECKPOINTS not in path.parents]
    read = [Reader(tree, module, "vllm").read() for module in modules]
    uses = [use for one in read for use in one.uses]
    return [*uses, *_log_lines()], {k: v for one in read for k, v in one.elsewhere.items()}


def hook_uses() -> Iterator[Use]:
    """What the hooks of both runners replace in the installed vLLM, where they are installed for it."""
    from plugin import vllm_hooks
    from plugin.vllm_hooks.hook import REPLACED

    vllm_hooks.of_every_runner()
    vllm_hooks.of_the_v1_runner()
    vllm_hooks.of_the_v2_runner()
    for (module, path), hooks in REPLACED.items():
        for hook in hooks:
            yield Use(
                "hook",
                module,
                path,
                f"{hook.function.__globals__['__name__']}:{hook.function.__code__.co_firstlineno}",
                ours=signatures.of_callable(hook.function),
                parameters=hook.parameters,
                optional=hook.optional,
            )


def _log_lines() -> Iterator[Use]:
    for module, texts in quiet_logs.HIDDEN.items():
        for text in texts:
            yield Use("text", f"vllm.{module}", (), "plugin.quiet_logs", text=text)
