"""The draft families, each once: its names, the model that serves it, the drafts published of it and its own keys.

Every other table of families comes from here; this imports neither torch nor vLLM, so that command lines, checks and
vLLM's plugin loader can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

Family = Literal["dflash", "dspark", "dflare"]
MarkovHeadType = Literal["vanilla", "gated", "rnn"]
LossName = Literal["kl", "ce", "tv", "nla", "lk_hybrid"]

VERIFIER_ARCHITECTURE: Final = "T5Gemma2ForConditionalGeneration"
MARKOV_HEAD_TYPES: Final[tuple[MarkovHeadType, ...]] = get_args(MarkovHeadType)


@dataclass(frozen=True, slots=True)
class Depth:
    """How many layers a draft has, and which decoder layers of the verifier it reads (from 0, ascending)."""

    num_layers: int
    aux_layer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """One family. `name` is its `speculators_model_type`, `title` how people write it.

    `published` are the drafts for a decoder of 26 layers, `demo` the bundled one for a decoder of six. `own_keys` are
    those that only its config.json has, each with what a missing one means to vLLM. `loss` are the distances to the
    verifier that it is trained to lessen, with their weights.
    """

    name: Family
    title: str
    published: Depth
    demo: Depth
    own_keys: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[LossName, float] = field(default_factory=lambda: {"kl": 1.0})

    @property
    def speculators_class(self) -> str:
        """The class that a checkpoint's `architectures` names."""
        return f"{self.title}DraftModel"

    @property
    def config_class(self) -> str:
        """The configuration class that a checkpoint's `auto_map` names."""
        return f"{self.title}SpeculatorConfig"

    @property
    def architecture(self) -> str:
        """The architecture that vLLM builds: its registered name and the class's."""
        return f"T5Gemma2{self.title}DraftModel"

    @property
    def model(self) -> str:
        """`module:Class` of the model that serves it."""
        return f"plugin.drafts.{self.name}:{self.architecture}"


FAMILIES: Final[dict[str, FamilyFacts]] = {
    family.name: family
    for family in (
        FamilyFacts("dflash", "DFlash", Depth(5, (2, 7, 13, 18, 21)), Depth(2, (0, 1, 2, 3, 4, 5))),
        FamilyFacts(
            "dspark",
            "DSpark",
            Depth(5, (2, 7, 13, 18, 21)),
            Depth(3, (0, 1, 2, 3, 4, 5)),
            {
                "markov_rank": None,
                "markov_head_type": "vanilla",
                "enable_confidence_head": False,
                "confidence_head_with_markov": False,
            },
            {"ce": 0.1, "tv": 0.9},
        ),
        FamilyFacts(
            "dflare", "DFlare", Depth(6, (2, 5, 8, 11, 14, 17, 20, 22)), Depth(4, (0, 1, 2, 3, 4, 5))
        ),
    )
}
"""In the order in which they are listed wherever several are."""
