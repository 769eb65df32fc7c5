"""What strangers get to see of a run: the verifier's name in its draft, the licence, and the upload to the hub."""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from plugin.training.run.folder import BEST, RunFolder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Publication:
    """`verifier` is the name in config.json and card, `license` an id of the hub or None, `repository` the hub's."""

    verifier: str
    license: str | None = None
    repository: str | None = None
    private: bool = False

    @classmethod
    def asked(cls, arguments: argparse.Namespace, verifier: str) -> Self:
        """What the flags ask for of a draft for `verifier`, a folder or hub id.

        A folder is named by its absolute path, since every reader takes a relative one from another place. Raises
        `ValueError` where an upload would name a folder that nobody else has.
        """
        folder = Path(verifier)
        name = arguments.verifier_name or (str(folder.absolute()) if folder.is_dir() else verifier)
        if arguments.push_to_hub and arguments.verifier_name is None and folder.is_dir():
            raise ValueError(
                f"--push-to-hub: nobody else has the verifier {verifier}; name it by --verifier-name OWNER/NAME"
            )
        found = arguments.license or _license(verifier)
        return cls(name, found, arguments.push_to_hub, arguments.private)

    def push(self, folder: RunFolder) -> None:
        """Uploads the best checkpoint, if that was asked for. The run stands whatever becomes of it."""
        if self.repository is None:
            return
        best = (folder.path / BEST).resolve()
        try:
            address = upload(best, self.repository, self.private)
        except Exception as error:  # the hub's client raises many kinds
            line = " ".join(str(error).split())
            raise OSError(
                f"--push-to-hub {self.repository}: {best} was not uploaded: {type(error).__name__}: {line[:300]}"
            ) from None
        logger.info("%s: uploaded as %s", best, address)


def upload(checkpoint: Path, repository: str, private: bool) -> str:
    """Puts all files of a checkpoint into a repository of the hub, made if need be; the commit's address."""
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(repository, private=private, exist_ok=True)
    message = f"Epoch {checkpoint.name}"
    return str(api.upload_folder(repo_id=repository, folder_path=checkpoint, commit_message=message))


def _license(verifier: str) -> str | None:
    """What the verifier's own card says, where it has one here."""
    from huggingface_hub import ModelCard

    card = Path(verifier) / "README.md"
    if not card.is_file():
        return None
    try:
        data: Any = ModelCard.load(card).data
    except Exception:  # a card without front matter, or with another kind of it, says nothing
        return None
    return data.license
