"""Which drafts could be served: the sub-folders of the checkpoints folder, each with its facts, and whether it fits."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from app.config.settings import Settings, SettingsError
from app.drafts.identity import Identity
from plugin.drafts.checkpoint import (
    CheckpointError,
    Checkpoints,
    DraftFacts,
    check_fit,
    read_draft,
    refuse_what_is_no_file,
)


class Available(BaseModel):
    """A draft checkpoint on disk. `problem` says in one line why it cannot be served at all; then the facts are null.
    `fits`: with the loaded verifier, under the present settings; else `misfit` says why not.
    """

    name: str
    path: str
    family: str | None = None
    default_k: int | None = None
    block_size: int | None = None
    verifier: str | None = None
    problem: str | None = None
    fits: bool = False
    misfit: str | None = None
    active: bool = False


def available(folder: Path, served: Identity, settings: Settings) -> list[Available]:
    """The drafts in `folder`, by name; what holds another model's config, or none, is left out, one that cannot be read
    is not. Blocks on the disk."""
    return [found for sub in sorted(folder.iterdir()) if (found := _read(sub, served, settings)) is not None]


def identity_with(folder: Path, served: Identity, settings: Settings) -> Identity:
    """What would be served with the draft in `folder` in the place of the loaded one, under the same names. K is the
    one of the settings where the draft allows it, else the draft's own.

    Raises:
        CheckpointError, SettingsError: it cannot be.
    """
    return _identity(read_draft(folder), served, settings)


def _identity(draft: DraftFacts, served: Identity, settings: Settings) -> Identity:
    check_fit(draft, served.verifier)
    asked = settings.k if isinstance(settings.k, int) and settings.k <= draft.max_k else draft.default_k
    found = Identity.of(Checkpoints(served.verifier, draft, asked), settings)
    return found.under(served.served_model_names)


def _is_anothers(config: Path) -> bool:
    """Whether this is a config, and no draft's."""
    try:
        text = config.read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError, RecursionError):
        return False  # what it is nobody can tell: its owner should
    return "speculators_config" not in text


def _read(folder: Path, served: Identity, settings: Settings) -> Available | None:
    config = folder / "config.json"
    try:
        if not config.exists():
            return None
        refuse_what_is_no_file(folder)
        if _is_anothers(config):
            return None
        facts = read_draft(folder)
    except (OSError, CheckpointError) as error:
        words = str(error)
        return Available(name=folder.name, path=str(folder), problem=words, misfit=words)
    misfit = None
    try:
        _identity(facts, served, settings)
    except (CheckpointError, SettingsError) as error:
        misfit = str(error)
    return Available(
        name=folder.name,
        path=str(folder),
        family=facts.family,
        default_k=facts.default_k,
        block_size=facts.block_size,
        verifier=facts.verifier_name,
        fits=misfit is None,
        misfit=misfit,
        active=served.draft is not None and Path(served.draft.path).absolute() == folder.absolute(),
    )
