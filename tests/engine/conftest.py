"""Fixtures of the engine tests: one tiny verifier, its reference answers and its drafts a session.

The environment is set before vLLM is imported: no network, nothing compiled, no binding of the process to a core.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # vLLM compiles its log-probability ranks even when eager
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import pytest
from filelock import FileLock

from tests.reference.fit import fit_draft
from tests.reference.greedy import GreedyReference
from tests.reference.prompts import mixed_prompts
from tests.reference.tiny import write_verifier
from tests.reference.tiny_drafts import SPECS, write_draft

NEW_TOKENS = 48


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny random verifier."""
    return write_verifier(tmp_path_factory.mktemp("tiny") / "verifier")


@pytest.fixture(scope="session")
def reference(verifier: Path) -> GreedyReference:
    """transformers' greedy answers for the tiny verifier."""
    return GreedyReference(verifier)


@pytest.fixture(scope="session")
def prompts() -> list[tuple[int, ...]]:
    """The 50 prompts of mixed lengths."""
    return mixed_prompts(50)


@pytest.fixture(scope="session")
def fitted(
    verifier: Path,
    reference: GreedyReference,
    prompts: list[tuple[int, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """`fitted(name)`: folder of the draft `SPECS[name]` fitted to the 50 answers: right a third of the time."""
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
    folder = tmp_path_factory.mktemp("drafts")

    def make(name: str) -> Path:
        if not (folder / name).exists():
            write_draft(folder / name, SPECS[name], verifier)
        return folder / name

    return make
