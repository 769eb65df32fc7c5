"""`app` and `plugin` are names that others use, too. What hides one of ours is named with its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.test_main import ROOT, environment

T5GEMMA2 = "import runpy; runpy.run_module('app.cli', run_name='__main__')"
"""What the `t5gemma2` script does."""


def started(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with these words, and `folder` before ours on the path."""
    variables = environment(PYTHONPATH=f"{folder}:{ROOT}")
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60)


def another(folder: Path, name: str, form: str) -> Path:
    """A package, a module or a file of that name; the path that Python gives for it."""
    path = folder / name / "__init__.py" if form == "package" else folder / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text("main = None\n")
    return path


@pytest.mark.parametrize("form", ["package", "module"])
@pytest.mark.parametrize(
    "words", [("-c", "import app"), ("-c", T5GEMMA2), ("-m", "uvicorn", "app:main", "--port", "0")]
)
def test_another_plugin(tmp_path: Path, form: str, words: tuple[str, ...]) -> None:
    found = another(tmp_path, "plugin", form)
    ended = started(tmp_path, *words)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert (
        last.startswith(f"ImportError: `plugin` was imported from {found}, which hides") and str(ROOT) in last
    )


def test_a_folder_without_code_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "plugin").mkdir()
    assert started(tmp_path, "-c", "import app").returncode == 0


@pytest.mark.parametrize("form", ["package", "module"])
def test_another_app(tmp_path: Path, form: str) -> None:
    """Nothing of ours runs then but the vLLM plugin, which knows; Python itself names the module it misses."""
    found = another(tmp_path, "app", form)
    said = started(tmp_path, "-c", "import plugin; print(plugin.other_app())")
    assert said.stdout.strip() == str(found)
    ended = started(tmp_path, "-c", T5GEMMA2)
    assert ended.returncode == 1 and "app.cli" in ended.stderr.splitlines()[-1]


def test_our_own_app(tmp_path: Path) -> None:
    assert started(tmp_path, "-c", "import plugin; print(plugin.other_app())").stdout == "None\n"
