"""A way to compute the projections: which of them by cuBLAS, which by our program, and cut how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from plugin.projection import few_tokens, triton_linear
from plugin.projection.triton_linear import Cut, choose_cut

Shape = tuple[int, int]
MOST_TOKENS = 128
"""Up to which our program is tried, whatever it serves now."""


@dataclass(frozen=True)
class Way:
    """Up to how many tokens our program serves, and by shape where it is cut in another way."""

    max_tokens: int = few_tokens.MAX_TOKENS
    cuts: Mapping[Shape, Cut] = field(default_factory=dict)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While this holds, what is launched goes this way."""
        with (
            mock.patch.object(few_tokens, "MAX_TOKENS", self.max_tokens),
            mock.patch.object(triton_linear, "choose_cut", self.cut),
        ):
            yield

    def cut(self, outputs: int, inputs: int, num_tokens: int, summed_behind: bool = False) -> Cut | None:
        """How a weight of this shape is cut."""
        return self.cuts.get((outputs, inputs)) or choose_cut(outputs, inputs, num_tokens, summed_behind)

    def of(self, step: Callable[[], object]) -> Callable[[], object]:
        """`step`, this way."""

        def call() -> object:
            with self.taken():
                return step()

        return call


def described(cut: Cut) -> str:
    """For a table."""
    of = f"{cut.block_n} x {cut.block_k}, {cut.num_warps} warps, {cut.num_stages} stages, {cut.splits} splits"
    return f"{of}, {cut.fetched} tiles ahead"
