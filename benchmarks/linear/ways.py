"""A way to compute the projections: which of them by cuBLAS, which by our program, cut how and with what on trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from unittest import mock

import torch

from benchmarks.linear import programs
from plugin.attention import triton_attend, triton_kernel
from plugin.projection import few_tokens, triton_linear
from plugin.projection.triton_linear import Cut, choose_cut

Shape = tuple[int, int]
MOST_TOKENS = 32
LET_IN = "dependents first"


@dataclass(frozen=True, slots=True)
class Trial:
    """A projection's cut, and the changes of its program."""

    cut: Cut
    changes: tuple[str, ...] = ()

    def __str__(self) -> str:
        cut = self.cut
        of = f"{cut.block_n} x {cut.block_k}, {cut.num_warps} warps, {cut.num_stages} stages, {cut.splits} splits"
        return ", ".join((of, f"{cut.fetched} tiles ahead", *self.changes))


@dataclass(frozen=True)
class Way:
    """Up to how many tokens our program serves, and where it is not as it stands.

    Args:
        max_tokens, split_tokens, gated_tokens: for all projections, those in shares, gate and up.
        trials: by shape.
        let_in: whether all programs have the change `dependents first`.
    """

    max_tokens: int = MOST_TOKENS
    split_tokens: int = few_tokens.MAX_SPLIT_TOKENS
    gated_tokens: int = few_tokens.MAX_GATED_TOKENS
    trials: Mapping[Shape, Trial] = field(default_factory=dict)
    let_in: bool = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While this holds, what is launched goes this way."""
        parts = triton_linear.project_parts

        def project_parts(
            x: torch.Tensor, weight: torch.Tensor, cut: Cut, act: str = "", out: torch.Tensor | None = None
        ) -> torch.Tensor:
            program = self.program(weight.shape[0], weight.shape[1])
            of = parts if program is triton_linear else program.project_parts
            made: torch.Tensor = of(x, weight, cut, act, out)
            return made

        with ExitStack() as stack:
            for owner, name, value in (
                (few_tokens, "MAX_TOKENS", self.max_tokens),
                (few_tokens, "MAX_SPLIT_TOKENS", self.split_tokens),
                (few_tokens, "MAX_GATED_TOKENS", min(self.gated_tokens, self.max_tokens)),
                (triton_linear, "choose_cut", self.cut),
                (triton_linear, "project_parts", project_parts),
            ):
                stack.enter_context(mock.patch.object(owner, name, value))
            for owner, name in programs.OTHERS if self.let_in else ():
                where = triton_kernel if owner is triton_attend else owner  # whence it is launched
                kernel = getattr(programs.module(owner, LET_IN), name)
                stack.enter_context(mock.patch.object(where, name, kernel))
            yield

    def cut(self, outputs: int, inputs: int, num_tokens: int) -> Cut | None:
        """How a weight of this shape is cut."""
        trial = self.trials.get((outputs, inputs))
        return choose_cut(outputs, inputs, num_tokens) if trial is None else trial.cut

    def program(self, outputs: int, inputs: int) -> ModuleType:
        """What projects a weight of this shape."""
        trial = self.trials.get((outputs, inputs))
        changes = () if trial is None else trial.changes
        return programs.projection(*changes, *((LET_IN,) if self.let_in else ()))

    def of(self, step: Callable[[], object]) -> Callable[[], object]:
        """`step`, this way."""

        def call() -> object:
            with self.taken():
                return step()

        return call
