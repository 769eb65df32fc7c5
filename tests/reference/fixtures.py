"""What the engine tests on the CPU and on the GPU share: one tiny verifier, its answers and its drafts a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.reference.greedy import GreedyReference

NEW_TOKENS = 48


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny random verifier."""
    from tests.reference.tiny import write_verifier

    return write_verifier(tmp_path_factory.mktemp("tiny") / "verifier")


@pytest.fixture(scope="session")
def reference(verifier: Path) -> GreedyReference:
    """transformers' greedy answers for the tiny verifier."""
    from tests.reference.greedy import GreedyReference

    return GreedyReference(verifier)


@pytest.fixture(scope="session")
def prompts() -> list[tuple[int, ...]]:
    """The 50 prompts of mixed lengths."""
    from tests.reference.prompts import mixed_prompts

    return mixed_prompts(50)


@pytest.fixture(scope="session")
def fitted(
    verifier: Path,
    reference: GreedyReference,
    prompts: list[tuple[int, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """`fitted(name)`: folder of the draft `SPECS[name]` fitted to the 50 answers: right a third of the time."""
    from filelock import FileLock

    from tests.reference.fit import fit_draft
    from tests.reference.tiny_drafts import SPECS

    base = tmp_path_factory.getbasetemp()
    # Workers of one run fit each draft once: their folders lie side by side.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fitted"
    folder.mkdir(exist_ok=True)

    def make(name: str) -> Path:
        with FileLock(folder / f"{name}.lock"):
            if not (folder / name).exists():
                fit_draft(folder / name, SPECS[name], verifier, reference, prompts, NEW_TOKENS, steps=200)
        return folder / name

    return make


@pytest.fixture(scope="session")
def random_draft(verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`random_draft(name)`: folder of the random draft `SPECS[name]`, which is almost never right."""
    from tests.reference.tiny_drafts import SPECS, write_draft

    folder = tmp_path_factory.mktemp("drafts")

    def make(name: str) -> Path:
        if not (folder / name).exists():
            write_draft(folder / name, SPECS[name], verifier)
        return folder / name

    return make
