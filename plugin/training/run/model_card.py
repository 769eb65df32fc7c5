"""The README.md of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plugin.drafts.families import FAMILIES
from plugin.training.draft.config import DraftConfig
from plugin.training.run.trainer import TrainingState
from plugin.training.settings import DraftSettings


def model_card(
    config: DraftConfig,
    verifier: str,
    settings: DraftSettings,
    state: TrainingState,
    metrics: Mapping[str, float],
) -> str:
    """Markdown with the hub's front matter: what the draft is, how it was trained, what it reached, how to serve it."""
    name = Path(verifier).name if Path(verifier).is_dir() else verifier
    base = "" if Path(verifier).is_dir() else f"base_model: {verifier}\n"
    title = FAMILIES[config.family].title
    shape = {
        "block size": config.block_size,
        "draft layers": config.num_hidden_layers,
        "hidden size": config.hidden_size,
        "verifier layers read": ", ".join(map(str, config.aux_hidden_state_layer_ids)),
        "draft vocabulary": config.draft_vocab_size,
        "mask token id": config.mask_token_id,
    }
    recipe = {
        "epoch": f"{state.epoch} of 0 ... {settings.epochs - 1}",
        "global step": state.global_step,
        "packed rows a step": settings.step_rows,
        "packed row, tokens": settings.total_length,
        "anchors a row": settings.max_anchors,
        "peak learning rate": settings.peak_rate,
        "seed": settings.seed,
    }
    reached = {key: f"{value:.5f}" for key, value in metrics.items()}
    parts = [
        f"---\n{base}tags: [speculators, speculative-decoding, {config.family}, t5gemma2]\n---",
        f"# {title} draft for {name}",
        f"A {title} draft in Speculators format: up to {config.block_size - 1} draft tokens a step.",
        _table("draft", shape),
        _table("training", recipe),
        _table("validation", reached) if reached else "It was trained without a validation set.",
        "Serve it with `t5gemma2 serve --draft FOLDER`, judge it with `t5gemma2 check FOLDER`. `train_command.txt` and"
        " `training/` say how it was made.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(title: str, rows: Mapping[str, object]) -> str:
    return "\n".join(
        [f"| {title} | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    )
