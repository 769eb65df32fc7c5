"""The README.md of a checkpoint: what a stranger needs in order to use the draft, and to judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from plugin.drafts.families import FAMILIES
from plugin.training.draft.config import DraftConfig
from plugin.training.run.trainer import TrainingState
from plugin.training.settings import DraftSettings


@dataclass(frozen=True, slots=True)
class ModelCard:
    """`data` are the counts of training/, `license` an id of the hub or None, `processes` how many trained it."""

    config: DraftConfig
    verifier: str
    settings: DraftSettings
    state: TrainingState
    metrics: Mapping[str, float]
    data: Mapping[str, Any]
    license: str | None = None
    processes: int = 1

    def text(self) -> str:
        """Markdown with the hub's front matter."""
        config, name = self.config, Path(self.verifier).name if self._local else self.verifier
        title = FAMILIES[config.family].title
        reached = {key: f"{value:.5f}" for key, value in self.metrics.items()}
        parts = [
            f"---\n{self._front_matter()}\n---",
            f"# {title} draft for {name}",
            f"A {title} draft in Speculators format: up to {config.draft_length} draft tokens a step for"
            f" {name}, whose output stays what it is without a draft.",
            "Serve it with `t5gemma2 serve --draft FOLDER`, judge it with `t5gemma2 check FOLDER`.",
            _table("draft", self._shape()),
            _table("training", self._recipe()),
            _table("data", self._data()),
            _table("validation", reached) if reached else "It was trained without a validation set.",
            "## Limits",
            "\n".join(f"- {limit}" for limit in self._limits(name)),
            "`train_command.txt` and `training/` say how it was made.",
        ]
        return "\n\n".join(parts) + "\n"

    @property
    def _local(self) -> bool:
        return self.verifier.startswith(("/", ".")) or Path(self.verifier).is_dir()

    def _sources(self) -> list[Mapping[str, Any]]:
        return list(self.data.get("sources", ()))

    def _front_matter(self) -> str:
        datasets = dict.fromkeys(one["dataset"] for one in self._sources() if one.get("dataset"))
        facts = ModelCardData(
            license=self.license,
            base_model=None if self._local else self.verifier,
            datasets=list(datasets) or None,
            library_name="speculators",
            tags=["speculators", "speculative-decoding", self.config.family, "t5gemma2"],
        )
        return str(facts.to_yaml())

    def _shape(self) -> dict[str, object]:
        config = self.config
        shape: dict[str, object] = {
            "block size": config.block_size,
            "draft layers": config.num_hidden_layers,
            "hidden size": config.hidden_size,
            "feed-forward width": config.intermediate_size,
            "verifier layers read": ", ".join(map(str, config.aux_hidden_state_layer_ids)),
            "draft vocabulary": config.draft_vocab_size,
            "mask token id": config.mask_token_id,
        }
        if config.sliding_layers:
            layers = ", ".join(map(str, config.sliding_layers))
            shape["sliding layers"] = f"{layers}, window {config.sliding_window}"
        if config.family == "dspark":
            shape["Markov head"] = f"{config.markov_head_type}, rank {config.markov_rank}"
            shape["samples from the anchor"] = "yes" if config.sample_from_anchor else "no"
        return shape

    def _recipe(self) -> dict[str, object]:
        settings, state = self.settings, self.state
        terms = settings.loss.of(self.config.family)
        return {
            "epoch": f"{state.epoch} of 0 ... {settings.epochs - 1}",
            "global step": state.global_step,
            "packed rows a step": settings.step_rows * self.processes,
            "packed row, tokens": settings.total_length,
            "anchors a row": settings.max_anchors,
            "loss": ", ".join(f"{weight:g} {name}" for name, weight in terms.items()),
            "peak learning rate, schedule": f"{settings.peak_rate}, {settings.schedule}",
            "blocks drawn shorter": f"{settings.short_blocks:.0%}",
            "seed": settings.seed,
        }

    def _data(self) -> dict[str, object]:
        taken = {
            str(one.get("source")): f"{one.get('taken')} of {one.get('rows')}" for one in self._sources()
        }
        return {
            **taken,
            "training, validation samples": f"{self.data.get('training_samples')}, "
            f"{self.data.get('validation_samples')}",
            "responses": f"the {self.data.get('responses', 'data')}'s",
            **self._cut(),
        }

    def _cut(self) -> dict[str, object]:
        cut = self.data.get("cut")
        return (
            {}
            if cut is None
            else {f"{cut['side']} cut": f"{cut['prompts']} prompts, {cut['responses']} responses"}
        )

    def _limits(self, name: str) -> list[str]:
        config, settings = self.config, self.settings
        limits = [
            f"It serves {name} and no other model, not even a fine-tuned one.",
            f"Prompts were cut at {settings.prompt_length} tokens and responses at {settings.response_length}; it may"
            " guess worse beyond.",
            "On other languages, formats and subjects than the data's it guesses worse.",
        ]
        if config.draft_vocab_size < config.vocab_size:
            limits.append(
                f"It can say {config.draft_vocab_size} of {config.vocab_size} tokens and guesses no other."
            )
        if not settings.short_blocks:
            limits.append(
                f"It was trained on whole blocks: where a server makes the block shorter, as vLLM does below K ="
                f" {config.draft_length}, acceptance can fall."
            )
        if settings.whole_blocks:
            limits.append("It was not trained on the last tokens of a response.")
        if self.data.get("responses", "data") == "data":
            limits.append(
                "It learned the data's responses; where the verifier answers otherwise, it guesses worse."
            )
        return limits


def _table(title: str, rows: Mapping[str, object]) -> str:
    return "\n".join(
        [f"| {title} | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    )
