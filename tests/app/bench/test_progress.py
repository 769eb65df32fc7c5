"""The progress bar: how far, and how much time is left."""

from __future__ import annotations

import io

from rich.console import Console

from app.bench.progress import ProgressBar


def shown(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    with ProgressBar(10, console) as bar:
        bar.stage("dflash:7 [K] · gsm8k")
        bar.advance(3)
        bar.advance()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_on_a_terminal() -> None:
    assert "4/10" in shown(True) and "left" in shown(True)


def test_in_a_log() -> None:
    """One line a stage, as it was said, and nothing that moves."""
    assert shown(False) == "dflash:7 [K] · gsm8k\n"
