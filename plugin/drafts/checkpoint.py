"""Which checkpoints are served, and whether they can be: names in, typed facts out, without vLLM or torch.

    checkpoints = resolve(model="d0rj/t5gemma-2-1b-1b.dflash-dev", draft=None, verifier=None, k=None)
    checkpoints = fetch(checkpoints)      # only hub ids need it; downloads, then checks the weights

The same facts choose the engine arguments, answer /drafts and word the errors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from plugin.drafts.facts import CheckpointError, Checkpoints, DraftFacts, VerifierFacts
from plugin.drafts.fields import Fields
from plugin.drafts.location import Location, download, locate
from plugin.drafts.speculators import draft_facts, is_draft
from plugin.drafts.tensors import check_draft
from plugin.drafts.verifier_config import check_tokenizer, check_verifier, verifier_facts

__all__ = [
    "DEMO",
    "CheckpointError",
    "Checkpoints",
    "DraftFacts",
    "VerifierFacts",
    "fetch",
    "read_draft",
    "read_verifier",
    "resolve",
    "verifier_of",
]

DEMO = Path(__file__).resolve().parent.parent / "demo"
"""The bundled demo: `verifier` and a folder for each draft family."""

_NO_DRAFT = "none"
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class _Found:
    """A checkpoint whose config was read and nothing more."""

    location: Location
    config: Fields
    is_draft: bool


def resolve(
    model: str | None,
    draft: str | None,
    verifier: str | None,
    k: int | None,
    checkpoints_dir: str | os.PathLike[str] | None = None,
) -> Checkpoints:
    """The checkpoints that MODEL, DRAFT, VERIFIER and K mean, checked by config and, where local, by weights.

    Args:
        model: a verifier or a draft; None is the bundled demo draft unless `draft` or `verifier` is given.
        draft: a draft for the verifier; `none` serves the verifier alone.
        verifier: used instead of the one that the draft's config names.
        k: draft tokens per step, 1 ... `DraftFacts.max_k`; None takes the checkpoint's own.
        checkpoints_dir: where names that are no existing path are looked up before the hub.

    Raises:
        CheckpointError: one line naming the file, the key and both values.
    """
    alone = draft is not None and draft.strip().lower() == _NO_DRAFT
    asked_draft = None if alone else draft
    if model is None and asked_draft is None and verifier is None:
        model = str(DEMO / "dflash")
    main = _find(model, checkpoints_dir) if model else None
    chosen = _chosen_draft(main, asked_draft, checkpoints_dir)
    draft_is = draft_facts(chosen.config, chosen.location.path, chosen.location.name) if chosen else None
    target = _chosen_verifier(main, verifier, chosen, draft_is, checkpoints_dir)
    verifier_is = verifier_facts(target.config, target.location.path, target.location.name)
    if alone or draft_is is None or chosen is None:
        if k is not None:
            raise CheckpointError(f"K={k} was given, but no draft is served; remove it or name a draft")
        return _with_weights(Checkpoints(verifier_is, None, None))
    _check_fit(draft_is, verifier_is, chosen.config, target.config)
    if k is not None and not 1 <= k <= draft_is.max_k:
        raise CheckpointError(
            f"K={k} does not fit {chosen.config.file}: block_size {draft_is.block_size} allows 1 ..."
            f" {draft_is.max_k}"
        )
    return _with_weights(Checkpoints(verifier_is, draft_is, k or draft_is.default_k))


def fetch(checkpoints: Checkpoints) -> Checkpoints:
    """The same checkpoints as local folders with checked weights: hub ids are downloaded or taken from the
    cache.
    """
    verifier, draft = checkpoints.verifier, checkpoints.draft
    verifier = replace(verifier, path=download(locate(verifier.path)).path)
    if draft is not None:
        draft = replace(draft, path=download(locate(draft.path)).path)
    return _with_weights(Checkpoints(verifier, draft, checkpoints.k))


def read_draft(folder: str | os.PathLike[str]) -> DraftFacts:
    """Facts of one local draft, its weights checked; CheckpointError when it is none."""
    found = _find(str(Path(folder).absolute()), None)
    if not found.is_draft:
        raise found.config.error("speculators_config", "this is no Speculators draft")
    return check_draft(draft_facts(found.config, found.location.path, found.location.name), Path(folder))


def read_verifier(folder: str | os.PathLike[str]) -> VerifierFacts:
    """Facts of one local verifier, its weights checked; CheckpointError when it is none."""
    found = _find(str(Path(folder).absolute()), None)
    facts = verifier_facts(found.config, found.location.path, found.location.name)
    return replace(facts, dtype=check_verifier(facts, Path(folder)))


def verifier_of(draft_folder: str | os.PathLike[str], name_or_path: str) -> str:
    """A draft's `name_or_path` as absolute path or hub id; `./x` and `../x` start at the draft's folder."""
    if name_or_path.startswith("."):
        return os.path.normpath(Path(draft_folder).absolute() / name_or_path)
    return name_or_path


def _find(where: str, checkpoints_dir: str | os.PathLike[str] | None) -> _Found:
    location = locate(where, checkpoints_dir)
    config = Fields.read(location.file(_CONFIG), location.shown(_CONFIG))
    return _Found(location, config, is_draft(config))


def _chosen_draft(
    main: _Found | None, asked: str | None, checkpoints_dir: str | os.PathLike[str] | None
) -> _Found | None:
    if asked is None:
        return main if main is not None and main.is_draft else None
    found = _find(asked, checkpoints_dir)
    if not found.is_draft:
        raise CheckpointError(
            f"{found.config.file}: DRAFT={asked} is no Speculators draft (no speculators_config)"
        )
    if main is not None and main.is_draft:
        raise CheckpointError(
            f"MODEL {main.config.file} and DRAFT {found.config.file} are both drafts; give the draft only"
            f" once"
        )
    return found


def _chosen_verifier(
    main: _Found | None,
    asked: str | None,
    draft: _Found | None,
    facts: DraftFacts | None,
    checkpoints_dir: str | os.PathLike[str] | None,
) -> _Found:
    if main is not None and not main.is_draft:
        if asked is not None and locate(asked, checkpoints_dir).path != main.location.path:
            raise CheckpointError(
                f"MODEL {main.location.path} and VERIFIER {asked} are two verifiers; give only one"
            )
        return main
    if asked is None:
        if draft is None or facts is None:
            raise CheckpointError("no verifier is named; give MODEL or VERIFIER")
        asked = _named_verifier(draft, facts)
    found = _find(asked, checkpoints_dir)
    if found.is_draft:
        raise CheckpointError(
            f"{found.config.file}: the verifier {asked} is a draft (it has speculators_config)"
        )
    return found


def _named_verifier(draft: _Found, facts: DraftFacts) -> str:
    key = "speculators_config.verifier.name_or_path"
    if facts.verifier_name is None:
        raise CheckpointError(f"{draft.config.file}: {key} is missing; give VERIFIER")
    if facts.verifier_name.startswith("."):
        if draft.location.folder is None:
            raise CheckpointError(
                f"{draft.config.file}: {key} is the relative {facts.verifier_name!r}; give VERIFIER"
            )
        return verifier_of(draft.location.folder, facts.verifier_name)
    return facts.verifier_name


def _check_fit(draft: DraftFacts, verifier: VerifierFacts, config: Fields, target: Fields) -> None:
    """Refuse a draft that was made for another verifier: it names both files, keys and values."""
    layers = "transformer_layer_config"
    pairs = [
        (f"{layers}.hidden_size", draft.hidden_size, "decoder.hidden_size", verifier.hidden_size),
        ("target_hidden_size", draft.target_hidden_size, "decoder.hidden_size", verifier.hidden_size),
        (f"{layers}.vocab_size", draft.vocab_size, "decoder.vocab_size", verifier.vocab_size),
    ]
    for key, mine, other, theirs in pairs:
        if mine != theirs:
            raise CheckpointError(f"{config.file}: {key} is {mine}, but {target.file}: {other} is {theirs}")
    if draft.aux_layer_ids[-1] >= verifier.num_decoder_layers:
        raise CheckpointError(
            f"{config.file}: aux_hidden_state_layer_ids has {draft.aux_layer_ids[-1]}, but {target.file}:"
            f" decoder.num_hidden_layers is {verifier.num_decoder_layers}"
        )


def _with_weights(checkpoints: Checkpoints) -> Checkpoints:
    verifier, draft = checkpoints.verifier, checkpoints.draft
    if os.path.isdir(verifier.path):
        check_tokenizer(Path(verifier.path))
        stored = check_verifier(verifier, Path(verifier.path))
        verifier = replace(verifier, dtype=stored if verifier.dtype == "unknown" else verifier.dtype)
    if draft is not None and os.path.isdir(draft.path):
        draft = check_draft(draft, Path(draft.path))
    return Checkpoints(verifier, draft, checkpoints.k)
