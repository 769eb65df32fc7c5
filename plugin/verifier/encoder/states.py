"""The worker's side of the encoder: runs it where the scheduler's cache says so, and holds what comes out.

The scheduler (`cache.py`) counts on what is here but nothing depends on that: a prompt whose states are missing is
encoded.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from plugin.verifier.encoder.work import EncoderWork


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
            encode: prompts' token ids, each `[length]` -> their states, each `[length, hidden_size]`, which may be
                gone with the next call.
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
        held nor given twice are encoded together. They are to be read before the next call.
        """
        if self._pass is not None and self._pass[0] in {key for key, _ in prompts}:
            key, done = self._pass
            self.held[key] = done.states
            self._pass = None
        missing = {key: ids for key, ids in prompts if key not in self.held}
        fresh = dict(zip(missing, self._encode(list(missing.values())) if missing else (), strict=True))
        if self._keep:
            self.held.update(zip(fresh, copies_of(list(fresh.values())), strict=True))
        return [fresh[key] if key in fresh else self.held[key] for key, _ in prompts]


def copies_of(states: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each on its own, so that each can go on its own: one launch for all copies."""
    copies = [torch.empty_like(each) for each in states]
    if copies:
        torch._foreach_copy_(copies, states)
    return copies


def joined(states: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors `[length, hidden_size]` as one; nothing is copied where they already lie one behind the other."""
    first = states[0]
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for each in states:
        if each.data_ptr() != end or each.untyped_storage().data_ptr() != storage:
            return torch.cat(list(states))
        end += each.nbytes
    return first.as_strided((sum(map(len, states)), *first.shape[1:]), first.stride())
