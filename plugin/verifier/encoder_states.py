"""The worker's side of the encoder: runs it where the scheduler's cache says so, and holds what comes out.

The scheduler (`encoder_cache`) counts on what is here but nothing depends on that: a prompt whose states are missing is
encoded.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from plugin.verifier.encoder_work import EncoderWork


class Pass(Protocol):
    """See `EncoderPass`."""

    rows_done: int

    @property
    def num_rows(self) -> int: ...

    @property
    def states(self) -> torch.Tensor: ...

    def advance(self, num_rows: int) -> None: ...


class EncoderStates:
    """`held` is vLLM's own dictionary, from which it takes what the scheduler frees."""

    def __init__(
        self,
        held: dict[str, torch.Tensor],
        encode: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]],
        begin: Callable[[torch.Tensor], Pass],
        keep: bool,
    ) -> None:
        """
        Args:
            held: states by the prompt's identity.
            encode: prompts' token ids, each `[length]` -> their states, each `[length, hidden_size]`.
            begin: one prompt's token ids -> a pass over it of which nothing is done.
            keep: whether states stay for later steps.
        """
        self.held = held
        self._encode, self._begin, self._keep = encode, begin, keep
        self._pass: tuple[str, Pass] | None = None

    def advance(self, work: EncoderWork | None) -> None:
        """Do a step's part of a long prompt's pass; once it is done, `of` finds its states.

        Raises:
            RuntimeError: it goes on with a pass that is not the one under way.
        """
        if work is None:
            return
        if work.key is None:
            self._pass = None
            return
        if work.prompt is not None:
            self._pass = None  # whatever it was, its memory is needed
            self._pass = work.key, self._begin(work.prompt)
        if self._pass is None or self._pass[0] != work.key or self._pass[1].rows_done != work.first_row:
            raise RuntimeError(f"no encoder pass at row {work.first_row} of prompt {work.key}")
        self._pass[1].advance(work.num_rows)

    def of(self, prompts: Sequence[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
        """The states of prompts given by identity and token ids, each `[length, hidden_size]`. Those that are neither
        held nor given twice are encoded together.
        """
        if self._pass is not None and self._pass[0] in {key for key, _ in prompts}:
            key, done = self._pass
            self.held[key] = done.states
            self._pass = None
        missing = {key: ids for key, ids in prompts if key not in self.held}
        fresh = dict(zip(missing, self._encode(list(missing.values())) if missing else (), strict=True))
        if self._keep:
            self.held.update({key: _own(states) for key, states in fresh.items()})
        return [fresh[key] if key in fresh else self.held[key] for key, _ in prompts]


def _own(states: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where it is a part of a batch's, all of which would stay in memory with it."""
    return states if states.untyped_storage().nbytes() == states.nbytes else states.clone()
