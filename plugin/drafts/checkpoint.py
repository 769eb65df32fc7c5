"""Which checkpoints are served, and whether they can be: names in, typed facts out, without vLLM or torch.

    checkpoints = resolve(model="d0rj/t5gemma-2-1b-1b.dflash-dev", draft=None, verifier=None, k=None)
    checkpoints = fetch(checkpoints)      # only hub ids need it; downloads, then checks the weights

The same facts choose the engine arguments, answer /drafts and word the errors.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from plugin.drafts.facts import CheckpointError, Checkpoints, DraftFacts, VerifierFacts
from plugin.drafts.families import VERIFIER_ARCHITECTURE
from plugin.drafts.fields import Fields
from plugin.drafts.location import Location, download, locate, refuse_what_is_no_file
from plugin.drafts.speculators import draft_facts, is_draft
from plugin.drafts.tensors import check_draft
from plugin.drafts.verifier_config import check_tokenizer, check_verifier, verifier_facts

__all__ = [
    "DEMO",
    "CheckpointError",
    "Checkpoints",
    "DraftFacts",
    "VerifierFacts",
    "check_fit",
    "fetch",
    "read_draft",
    "refuse_what_is_no_file",
    "resolve",
]

DEMO = Path(__file__).resolve().parent.parent / "demo"
"""The bundled demo: `verifier` and a folder for each draft family."""

_NO_DRAFT = "none"


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
    if alone:
        draft = None
    if model is None and draft is None and verifier is None:
        model = str(DEMO / "dflash")
    draft_is: DraftFacts | None = None
    verifier_is: VerifierFacts | None = None
    if model:
        config, location = _config("MODEL", model, checkpoints_dir)
        if is_draft(config):
            draft_is = draft_facts(config, location)
        else:
            verifier_is = verifier_facts(config, location)
    if draft is not None:
        config, location = _config("DRAFT", draft, checkpoints_dir)
        if not is_draft(config):
            raise _no_draft(config, location, draft_is)
        asked = draft_facts(config, location)
        if draft_is is not None:
            raise CheckpointError(
                f"MODEL {draft_is.path} and DRAFT {asked.path} are both drafts; give the draft only once"
            )
        draft_is = asked
    if verifier_is is None:
        setting, hint = "VERIFIER", ""
        if verifier is None:
            verifier = _named_verifier(draft_is)
            if draft_is is not None:
                setting, hint = _key(draft_is), "; give VERIFIER"
        config, location = _config(setting, verifier, checkpoints_dir, hint)
        if is_draft(config):
            raise _no_verifier(setting, location)
        verifier_is = verifier_facts(config, location)
    elif verifier is not None and (location := locate(verifier, checkpoints_dir)).path != verifier_is.path:
        if is_draft(_config("VERIFIER", verifier, checkpoints_dir)[0]):
            raise _no_verifier("VERIFIER", location)
        raise CheckpointError(
            f"MODEL {verifier_is.path} and VERIFIER {verifier} are two verifiers; give only one"
        )
    if alone or draft_is is None:
        if k is not None:
            raise CheckpointError(f"K={k} was given, but no draft is served; remove it or name a draft")
        return _with_weights(Checkpoints(verifier_is, None, None))
    check_fit(draft_is, verifier_is)
    if k is not None and not 1 <= k <= draft_is.max_k:
        raise CheckpointError(
            f"K={k} does not fit {draft_is.config_file}: block_size {draft_is.block_size} allows 1 ..."
            f" {draft_is.max_k}"
        )
    return _with_weights(Checkpoints(verifier_is, draft_is, k or draft_is.default_k))


def fetch(checkpoints: Checkpoints) -> Checkpoints:
    """The same checkpoints as local folders with checked weights; hub ids are downloaded or taken from the cache."""
    verifier, draft = checkpoints.verifier, checkpoints.draft
    verifier = replace(verifier, path=download(locate(verifier.path)).path)
    if draft is not None:
        draft = replace(draft, path=download(locate(draft.path)).path)
    return _with_weights(Checkpoints(verifier, draft, checkpoints.k))


def read_draft(folder: str | os.PathLike[str]) -> DraftFacts:
    """Facts of one local draft, its weights checked; CheckpointError when it is none."""
    path = Path(folder).absolute()
    refuse_what_is_no_file(path)
    location = Location(path.name, path)
    config = Fields.read(path / "config.json")
    return check_draft(draft_facts(config, location), path)


def _config(
    setting: str, where: str, checkpoints_dir: str | os.PathLike[str] | None = None, hint: str = ""
) -> tuple[Fields, Location]:
    """The config of the checkpoint that `setting` names; a refusal begins with it and ends with `hint`."""
    try:
        location = locate(where, checkpoints_dir)
        if location.folder is not None and not (location.folder / "config.json").exists():
            raise CheckpointError(f"{location.path}/config.json: cannot be read: {_instead(location.folder)}")
        return Fields.read(location.file("config.json"), f"{location.path}/config.json"), location
    except CheckpointError as error:
        raise CheckpointError(f"{setting}: {error}{hint}") from None


def _instead(folder: Path) -> str:
    """What a folder without a config.json is."""
    missing = "No such file or directory"
    if any(
        (folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
    ):
        return f"{missing}; the folder holds a tokenizer, but no model"
    if inner := sorted(file.parent.name for file in folder.glob("*/config.json")):
        return f"{missing}; checkpoints are in its sub-folders {', '.join(inner[:4])}: name one of them"
    return f"{missing}; the folder holds no checkpoint"


def _no_draft(config: Fields, location: Location, model: DraftFacts | None) -> CheckpointError:
    """The refusal of a DRAFT that is something else."""
    named = config.values.get("architectures")
    if named != [VERIFIER_ARCHITECTURE]:
        return config.error("architectures", f"DRAFT {location.name} is no Speculators draft")
    hint = (
        "give it as MODEL or VERIFIER"
        if model is None
        else f"MODEL {model.path} is a draft: exchange MODEL and DRAFT"
    )
    return CheckpointError(f"{config.file}: DRAFT is no Speculators draft but a verifier; {hint}")


def _no_verifier(setting: str, location: Location) -> CheckpointError:
    return CheckpointError(f"{setting}: {location.path} is a draft, not a verifier; give it as DRAFT")


def _key(draft: DraftFacts) -> str:
    return f"{draft.config_file}: speculators_config.verifier.name_or_path"


def _named_verifier(draft: DraftFacts | None) -> str:
    """The verifier that the draft's config names, as path or hub id; `./x` and `../x` start at the draft's folder."""
    if draft is None:
        raise CheckpointError("no verifier is named; give MODEL or VERIFIER")
    name = draft.verifier_name
    if name is None:
        raise CheckpointError(f"{_key(draft)} is missing; give VERIFIER")
    if not name.startswith("."):
        return name
    if not os.path.isabs(draft.path):
        raise CheckpointError(f"{_key(draft)} is the relative {name!r}; give VERIFIER")
    return os.path.normpath(Path(draft.path) / name)


def check_fit(draft: DraftFacts, verifier: VerifierFacts) -> None:
    """Refuse a draft that was made for another verifier: it names both files, keys and values."""
    layers = "transformer_layer_config"
    pairs = [
        (f"{layers}.hidden_size", draft.hidden_size, "decoder.hidden_size", verifier.hidden_size),
        ("target_hidden_size", draft.target_hidden_size, "decoder.hidden_size", verifier.hidden_size),
        (f"{layers}.vocab_size", draft.vocab_size, "decoder.vocab_size", verifier.vocab_size),
    ]
    for key, mine, other, theirs in pairs:
        if mine != theirs:
            raise CheckpointError(
                f"{draft.config_file}: {key} is {mine}, but {verifier.config_file}: {other} is {theirs}"
            )
    if draft.block_size > verifier.max_positions:
        raise CheckpointError(
            f"{draft.config_file}: block_size is {draft.block_size}, but {verifier.config_file}:"
            f" decoder.max_position_embeddings is {verifier.max_positions}"
        )
    if draft.aux_layer_ids[-1] >= verifier.num_decoder_layers:
        raise CheckpointError(
            f"{draft.config_file}: aux_hidden_state_layer_ids has {draft.aux_layer_ids[-1]}, but"
            f" {verifier.config_file}: decoder.num_hidden_layers is {verifier.num_decoder_layers}"
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
