"""Whether two arms put out the same: greedy output with a draft must be the verifier's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an arm first leaves the base: prompt number from 0, and the position of the first token (or of
    the first character, when texts were compared); a side that ended there has None.
    """

    prompt: int
    position: int
    base: int | str | None
    arm: int | str | None


@dataclass(frozen=True, slots=True)
class Equality:
    """`equal` of `compared` prompts, by `token_ids` or `texts`; prompts that one side failed are left out."""

    by: str
    compared: int
    equal: int
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Counts and the first difference, or null."""
        first = asdict(self.differences[0]) if self.differences else None
        return {"by": self.by, "compared": self.compared, "equal": self.equal, "first_difference": first}


def compare(base: dict[str, Any], arm: dict[str, Any]) -> Equality:
    """Two `outputs` of the same prompts in the same order, by ids when both have them."""
    by = "token_ids" if base["token_ids"] is not None and arm["token_ids"] is not None else "texts"
    compared, found = 0, []
    for prompt, (wanted, got) in enumerate(zip(base[by], arm[by], strict=False)):
        if wanted is None or got is None:
            continue
        compared += 1
        if wanted != got:
            found.append(_difference(prompt, wanted, got))
    return Equality(by, compared, compared - len(found), tuple(found))


def _difference(prompt: int, base: Sequence[Any], arm: Sequence[Any]) -> Difference:
    shared = min(len(base), len(arm))
    position = next((i for i in range(shared) if base[i] != arm[i]), shared)
    return Difference(
        prompt,
        position,
        base[position] if position < len(base) else None,
        arm[position] if position < len(arm) else None,
    )
