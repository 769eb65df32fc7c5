"""Where a checkpoint lies: a local folder or a repository of the Hugging Face hub.

Anything that begins with `/`, `.` or `~` is a path and never a reason to ask the network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plugin.drafts.facts import CheckpointError

_OF_A_RUN = re.compile(r"\d+(\.\d+)?")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class Location:
    """A checkpoint's place; `folder` is None while it is only a hub id. `name` is what people call it."""

    name: str
    folder: Path | None

    @property
    def path(self) -> str:
        """The folder, or the hub id: what an engine takes as a model."""
        return str(self.folder) if self.folder else self.name

    def file(self, name: str) -> Path:
        """The local copy of one small file, taken from the hub if need be; CheckpointError when there is none."""
        if self.folder is not None:
            return self.folder / name
        from huggingface_hub import hf_hub_download

        with _hub_errors(self.name, name):
            return Path(hf_hub_download(self.name, name))


def locate(where: str, checkpoints_dir: str | os.PathLike[str] | None = None) -> Location:
    """The place that `where` means: an existing folder, one of `checkpoints_dir`, or a hub id `owner/name`.

    Raises CheckpointError when a path does not exist, is a file or cannot be read; no network is asked.
    """
    given = where.strip()
    path = Path(os.path.abspath(os.path.expanduser(given)))
    local = given.startswith(("/", ".", "~"))
    try:
        if not local and checkpoints_dir is not None and not path.exists():
            listed = Path(checkpoints_dir, given)
            path = listed if listed.is_dir() else path
        found = path.exists()
    except OSError as error:
        raise CheckpointError(f"{given}: the path cannot be read: {error.strerror}") from None
    if found:
        return Location(_name(path), _readable_folder(path, given))
    if local:
        raise CheckpointError(f"{given}: the path {path} does not exist")
    if not _HUB_ID.fullmatch(given):
        raise CheckpointError(f"{given}: the path does not exist, and it is no hub id (owner/name)")
    return Location(given, None)


def _name(path: Path) -> str:
    """What people call the checkpoint at `path`: its folder, but of a training run's the run, and where it stood.

    `run/checkpoint_best` is `run`, as it may be another one tomorrow, and `run/3` is `run-3`.
    """
    name, run = path.name or str(path), path.parent.name
    if run and name == "checkpoint_best":
        return run
    return f"{run}-{name}" if run and _OF_A_RUN.fullmatch(name) else name


def _readable_folder(path: Path, given: str) -> Path:
    if not path.is_dir():
        raise CheckpointError(f"{given}: is a file, not a folder; give the checkpoint's folder")
    if not os.access(path, os.R_OK | os.X_OK):
        raise CheckpointError(f"{given}: the folder cannot be read: permission denied")
    refuse_what_is_no_file(path)
    return path


def refuse_what_is_no_file(folder: Path) -> None:
    """Nothing in a checkpoint's folder is a pipe, a socket or a device: whoever opens one waits for ever.

    Raises:
        CheckpointError: one is; its path.
    """
    for entry in sorted(folder.iterdir()):
        # What exists; a link that leads nowhere is told of by whoever needs it.
        if entry.exists() and not (entry.is_file() or entry.is_dir()):
            raise CheckpointError(f"{entry}: cannot be read: is a pipe, socket or device, not a file")


def download(location: Location) -> Location:
    """The same checkpoint as a local folder, from the hub's cache or the hub; a folder is returned as is."""
    if location.folder is not None:
        return location
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "tokenizer*", "*.model", "*.txt", "*.jinja"]
    with _hub_errors(location.name, "its weights"):
        return Location(location.name, Path(snapshot_download(location.name, allow_patterns=wanted)))


@contextmanager
def _hub_errors(repo: str, wanted: str) -> Iterator[None]:
    """Turns the hub client's many exceptions into one line that says what to do; a token is never shown."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(f"{repo}: {wanted} could not be taken from the hub: {_cause(error)}") from None


def _cause(error: Exception) -> str:
    from huggingface_hub import constants, errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError) or status in (401, 403):
        return (
            "access was denied: accept the model's licence on its hub page and set HF_TOKEN to a valid token"
            " (the hub answers the same for a name that does not exist)"
        )
    if constants.HF_HUB_OFFLINE or isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set and the hub cache has no copy; give a local folder instead"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return "the repository has no such file"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return "the hub cannot be reached and its cache has no copy; give a local folder instead"
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
