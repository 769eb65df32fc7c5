"""The worker's side of the encoder: runs it where the scheduler's cache says so, and holds what comes out.

The scheduler (`encoder_cache`) counts on what is here but nothing depends on that: a prompt whose states are missing is
encoded.
"""

from collections.abc import Callable, Sequence

import torch

from plugin.verifier.encoder_pass import EncoderPass
from plugin.verifier.encoder_work import EncoderWork


class EncoderStates:
    """`held` is vLLM's own dictionary, from which it takes what the scheduler frees."""

    def __init__(
        self,
        held: dict[str, torch.Tensor],
        encode: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]],
        begin: Callable[[torch.Tensor, int], EncoderPass],
        keep: bool,
    ) -> None:
        """
        Args:
            held: states by the prompt's identity.
            encode: prompts' token ids, each `[length]` -> their states, each `[length, hidden_size]`.
            begin: one prompt's token ids and the tokens of a tile -> a pass over it that has not done any.
            keep: whether states stay for later steps.
        """
        self.held = held
        self._encode, self._begin, self._keep = encode, begin, keep
        self._pass: tuple[str, EncoderPass] | None = None

    def advance(self, work: EncoderWork | None) -> None:
        """Do a step's part of a long prompt's pass; with its last tile its states are held.

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
            self._pass = work.key, self._begin(work.prompt, work.tile_tokens)
        if self._pass is None or self._pass[0] != work.key or self._pass[1].tiles_done != work.first_tile:
            raise RuntimeError(f"no encoder pass at tile {work.first_tile} of prompt {work.key}")
        under_way = self._pass[1]
        under_way.advance(work.num_tiles)
        if under_way.tiles_done == under_way.num_tiles:
            self.held[work.key] = under_way.states
            self._pass = None

    def of(self, prompts: Sequence[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
        """The states of prompts given by identity and token ids, each `[length, hidden_size]`. Those that are neither
        held nor given twice are encoded together.
        """
        missing = {key: ids for key, ids in prompts if key not in self.held}
        fresh = dict(zip(missing, self._encode(list(missing.values())) if missing else (), strict=True))
        if self._keep:
            self.held.update({key: _own(states) for key, states in fresh.items()})
        return [fresh[key] if key in fresh else self.held[key] for key, _ in prompts]


def _own(states: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where it is a part of a batch's, all of which would stay in memory with it."""
    return states if states.untyped_storage().nbytes() == states.nbytes else states.clone()
