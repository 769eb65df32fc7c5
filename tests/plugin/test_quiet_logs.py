"""Lines that a user cannot act on are hidden, all others are not (N27)."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plugin import quiet_logs

LINES: list[tuple[str, int, str, tuple[Any, ...]]] = [
    (
        "triton_utils.importing",
        logging.WARNING,
        "Triton is installed, but doesn't include CPU backend. Disabling Triton.",
        (),
    ),
    (
        "platforms.cpu",
        logging.WARNING,
        "Triton is not installed. triton-cpu is expected on x86 CPUs.",
        (),
    ),
    (
        "model_executor.models.utils",
        logging.WARNING,
        "Attempted to load weight %s with dtype %s into parameter with dtype %s",
        ("decoder.norm.weight", "torch.float32", "torch.bfloat16"),
    ),
    ("v1.core.kv_cache_utils", logging.WARNING, "Add %d padding layers, may waste at most %.2f%%", (2, 33.3)),
    ("plugins", logging.INFO, "- %s -> %s", ("t5gemma2", "app.drafts.stat_logger:ServeLogger")),
]
"""As vLLM 0.32 writes them: of a start on the CPU, and of one on CUDA (one for each of 300 tensors)."""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a handler of vLLM's logger gets."""
    told: list[str] = []
    root = logging.getLogger("vllm")
    monkeypatch.setattr(root, "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(root, "level", logging.INFO)
    monkeypatch.setattr(handler, "emit", lambda record: told.append(record.getMessage()))
    for module in quiet_logs.HIDDEN:
        monkeypatch.setattr(logger := logging.getLogger(f"vllm.{module}"), "filters", [])
        logger._cache.clear()
    return told


@pytest.mark.parametrize(("module", "level", "text", "arguments"), LINES)
def test_hidden_unless_asked_for(
    module: str,
    level: int,
    text: str,
    arguments: tuple[Any, ...],
    shown: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger = logging.getLogger(f"vllm.{module}")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    quiet_logs.hide()
    logger.log(level, text, *arguments)
    assert len(shown) == 1
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    quiet_logs.hide()
    quiet_logs.hide()
    assert len(logger.filters) == 1
    logger.log(level, text, *arguments)
    assert len(shown) == 1
    logger.log(level, "a line of another kind")
    logger.error(text, *arguments)
    assert len(shown) == 3


def test_an_engine_that_ended_is_told_once(shown: list[str]) -> None:
    """Its own traceback stands above and the server's line below; another fault of the front end is shown whole."""

    class EngineDeadError(Exception):
        """vLLM's, by name."""

    quiet_logs.hide()
    logger = logging.getLogger("vllm.v1.engine.async_llm")
    for error, lines in ((EngineDeadError(), 0), (KeyError("request"), 1)):
        try:
            raise error
        except Exception:
            logger.exception("AsyncLLM output_handler failed.")
        assert len(shown) == lines


def test_the_lines_are_vllms() -> None:
    """Each module exists and holds what its hidden lines begin with; one that vLLM dropped can go from the list."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    for module, beginnings in quiet_logs.HIDDEN.items():
        place = root.joinpath(*module.split("."))
        file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
        text = file.read_text()
        for beginning in beginnings:
            if "%s" in beginning or "mm_device" in beginning:
                beginning = beginning.split(" %s")[0].removesuffix(" mm_device_do_normalize")
            assert beginning in text, f"{module}: {beginning}"


def test_standard_error_is_closed_only_after_the_last_python_words() -> None:
    """What nanobind writes in C when the interpreter is gone is not seen; a traceback is."""
    program = (
        "import atexit, os\nfrom plugin import quiet_logs\n"
        "atexit.register(os.write, 2, b'nanobind: leaked 5 functions!')\n"
        "quiet_logs.hide_leaks_at_exit()\nraise RuntimeError('seen')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "RuntimeError: seen" in ended.stderr
    assert "nanobind" not in ended.stderr
