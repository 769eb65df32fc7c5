"""The file of a verifier's answers: JSON lines, appended as answers come, so that none is made twice.

The first line says whose answers they are and how they were made; every other line is an answer with the SHA-256 of its
prompt's ids. So a stopped run goes on, another draft of the same verifier is trained on the same file, and other data
use what they share with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from plugin.training.data.pairs import DataError

FILE: Final = "responses.jsonl"


def prompt_hash(prompt: Sequence[int]) -> str:
    """SHA-256 of a prompt's ids as JSON."""
    return hashlib.sha256(json.dumps(list(prompt)).encode()).hexdigest()


class ResponseFile:
    """Answers at `path`, made as `header` says (JSON-ready); `known` has them by the hash of their prompts.

    Raises `DataError` when the file holds answers of another verifier or made otherwise, or cannot be read.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path, self._header = path, dict(header)
        self.known: dict[str, list[int]] = {}
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from None
        whole = [line for line in lines if line.endswith(b"\n")]
        self._empty = not whole
        if self._empty:
            return
        try:
            found, *answers = [json.loads(line) for line in whole]
            self.known = {answer["prompt"]: answer["response"] for answer in answers}
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path}: no file of responses: {error}") from None
        if found != self._header:
            raise DataError(
                f"{path}: holds responses of another verifier or of another length; remove it or name another file"
            )
        if len(whole) < len(lines):  # what a killed run left of a line
            with path.open("r+b") as file:
                file.truncate(sum(map(len, whole)))

    def add(self, answers: Iterable[tuple[Sequence[int], list[int]]]) -> None:
        """Appends (prompt, response) pairs one by one, each on the disk before the next is asked for."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w" if self._empty else "a", encoding="utf-8") as file:
            if self._empty:
                file.write(json.dumps(self._header) + "\n")
                self._empty = False
            for prompt, response in answers:
                name = prompt_hash(prompt)
                self.known[name] = response
                file.write(json.dumps({"prompt": name, "response": response}) + "\n")
                file.flush()
