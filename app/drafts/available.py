"""Which other drafts could be served: the sub-folders of the checkpoints folder, each with its facts or its fault."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from plugin.drafts.checkpoint import CheckpointError, read_draft


class Available(BaseModel):
    """A draft checkpoint on disk. `problem` says in one line why it cannot be served; then the facts are null."""

    name: str
    path: str
    family: str | None = None
    default_k: int | None = None
    block_size: int | None = None
    verifier: str | None = None
    problem: str | None = None


def available(folder: Path) -> list[Available]:
    """The drafts in `folder`, by name; what holds no Speculators config is left out. Blocks on the disk."""
    return [found for sub in sorted(folder.iterdir()) if (found := _read(sub)) is not None]


def _read(folder: Path) -> Available | None:
    try:
        if "speculators_config" not in (folder / "config.json").read_text(encoding="utf-8"):
            return None
        facts = read_draft(folder)
    except (OSError, UnicodeDecodeError):
        return None
    except CheckpointError as error:
        return Available(name=folder.name, path=str(folder), problem=str(error))
    return Available(
        name=folder.name,
        path=str(folder),
        family=facts.family,
        default_k=facts.default_k,
        block_size=facts.block_size,
        verifier=facts.verifier_name,
    )
