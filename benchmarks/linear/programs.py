"""What is on trial in the GPU's programs, as changes of their text: none of it is in the product until it was measured.

`weights left`: the weights are the left factor, so that outputs are the rows of a product and tokens its columns: rows
of 64 are what Hopper's own matrix instructions (wgmma) take, and they read weights where they lie in shared memory. The
present way has tokens as rows, 16 of them, and each warp loads weights into registers first.

`evict first`: weights are read once, and what is marked so leaves the L2 cache before what was fetched ahead.

`dependents first`: a launch lets the next one begin before it waits for the one before. At present it does so behind
its wait: the launch behind a norm may fetch weights for the 1.5 us that the norm takes, and while the attention runs
only the output projection's 2.4 MB come in. With this all launches behind are let in, as far as there is room for their
programs, and fetch meanwhile. Each still waits for the launch before it, which has ended only when the one before that
has: what a program reads behind its wait is as complete as before. What it reads before must be older than all of them.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

from plugin.attention import norm_rope, triton_attend
from plugin.projection import triton_linear, triton_residual_norm

WAIT = "        tl.extra.cuda.gdc_wait()\n"
LET_IN = "        tl.extra.cuda.gdc_launch_dependents()\n"

CHANGES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "weights left": (
        ("b_out = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)", "b_out = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)"),
        ("b_up = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)", "b_up = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)"),
        ("tl.dot(b_x, tl.trans(b_weight), b_out)", "tl.dot(b_weight, tl.trans(b_x), b_out)"),
        ("tl.dot(b_x, tl.trans(b_weight_up), b_up)", "tl.dot(b_weight_up, tl.trans(b_x), b_up)"),
        ("    o_out = (i_split", "    b_out, b_up = tl.trans(b_out), tl.trans(b_up)\n    o_out = (i_split"),
    ),
    "evict first": (
        ("tl.load(p_tile + first)", 'tl.load(p_tile + first, eviction_policy="evict_first")'),
        ("tl.load(p_tile + N * K + first)", 'tl.load(p_tile + N * K + first, eviction_policy="evict_first")'),
    ),
    "dependents first": ((WAIT + LET_IN, LET_IN + WAIT),),
}  # fmt: skip
"""By name what stands in the place of what."""

OTHERS: Final = (
    (triton_residual_norm, "norm_add_norm_kernel"),
    (norm_rope, "norm_rope_write_kernel"),
    (triton_attend, "attend_kernel"),
)
"""The programs besides the projections' that let the next launch in."""


def changed(text: str, names: Sequence[str]) -> str:
    """A module's text with these changes.

    Raises:
        ValueError: what a change takes the place of is not there.
    """
    for name in names:
        for old, new in CHANGES[name]:
            if old not in text:
                raise ValueError(f"{name}: no {old!r} in the program")
            text = text.replace(old, new)
    return text


@cache
def module(of: ModuleType, *names: str) -> ModuleType:
    """`of` with these changes, as a module of its own; Triton reads the text of its programs from a file."""
    if not names:
        return of
    last = of.__name__.rpartition(".")[2]
    path = Path(_folder().name) / f"{last}_{'_'.join(names).replace(' ', '_')}.py"
    path.write_text(changed(inspect.getsource(of), names), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"benchmarks.linear.trial.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # where a dataclass looks for its annotations
    spec.loader.exec_module(made)
    return made


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Holds the changed texts as long as this process lives."""
    return tempfile.TemporaryDirectory(prefix="linear-trials-")


def projection(*names: str) -> ModuleType:
    """`triton_linear` with these changes."""
    return module(triton_linear, *names)
