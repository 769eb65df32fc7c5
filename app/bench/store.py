"""Results on disk: one JSON file a cell, written whole or not at all, so that a run can be resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from app.bench.cell import Cell
from app.bench.errors import BenchError


class Store:
    """The output folder of one benchmark."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder.

        Raises:
            BenchError: it cannot be made.
        """
        self.folder = folder
        self.logs = folder / "logs"
        self._cells = folder / "cells"
        try:
            for needed in (self._cells, self.logs):
                needed.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(f"--out {folder}: {error.strerror}") from None

    def record(self, cell: Cell) -> dict[str, Any] | None:
        """The cell's record when there is one that was measured as the cell asks, whole or partial."""
        try:
            record = json.loads((self._cells / f"{cell.slug}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and record.get("key") == cell.key else None

    def keep(self, cell: Cell, record: dict[str, Any]) -> None:
        """Puts a cell's record in the place of an older one."""
        self.write(f"cells/{cell.slug}.json", json.dumps(record, ensure_ascii=False) + "\n")

    def write(self, name: str, text: str) -> Path:
        """A file of the folder, replaced in one step."""
        return write_whole(self.folder / name, text)


def write_whole(path: Path, text: str) -> Path:
    """The file with this text, replaced in one step."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
    return path
