"""The walls of the house: which package imports which, file sizes and names, one registry, imports without engine."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin.drafts.families import FAMILIES
from tests.floors import FLOORS

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "plugin" / "demo"
"""Checkpoints; their config.py belongs to the published layout, not to the plugin."""
SOURCES = sorted(
    path
    for folder in ("app", "plugin", "benchmarks")
    for path in ROOT.glob(f"{folder}/**/*.py")
    if DEMO not in path.parents
)
ENGINES = ("vllm", "torch", "triton")
LONGEST_FILE = 300
VLLM_MODULES = {"app.config_check", "app.vllm_engine", "app.drafts.stat_logger"}
"""Where `app` may import vLLM: in its embedded engine, and in the stat logger that feeds the ledger."""

KNOWN_TO_THE_APP = (
    "plugin.training.data.pairs",
    "plugin.training.data.problems.generate",
    "plugin.training.data.sources",
    "plugin.drafts.checkpoint",
    "plugin.drafts.families",
    "plugin.encoder_counts",
    "plugin.drafts.steps",
    "plugin.engine_process",
    "plugin.package_environment",
    "plugin.quiet_logs",
    "plugin.verifier.cpu_cache",
)
KNOWN_TO_THE_COMMAND = ("plugin.training.command",)
"""What of `plugin` the package `app` may import, and its command line: the flags of `train`."""

# Modules that may need vLLM or torch at import; a name that ends in a dot stands for the package's modules.
NEED_AN_ENGINE = (
    "app.drafts.stat_logger",
    "app.vllm_serve",
    "benchmarks.",
    "plugin.engine_imports",
    "plugin.vllm_hooks.",
    "plugin.verifier.",
    "plugin.attention.",
    "plugin.projection.",
    "plugin.training.",
    "plugin.drafts.backbone",
    "plugin.drafts.block_attention",
    "plugin.drafts.draft_tokens",
    "plugin.drafts.kernels.block_inputs",
    "plugin.drafts.kernels.context_pages",
    "plugin.drafts.dflash",
    "plugin.drafts.dspark",
    "plugin.drafts.dflare",
    "plugin.drafts.markov",
    "plugin.drafts.kernels.triton_pick",
    "plugin.drafts.v1_proposer",
    "plugin.drafts.v2_",
)


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, at_start: bool = False) -> Iterator[str]:
    """Absolute names that a file imports anywhere in it, also `a.b` for `from a import b`.

    With `at_start` only those of the moment when it is itself imported: not in a function, not for types alone.
    """
    found: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while found:
        node = found.pop()
        if at_start and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if at_start and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found += node.orelse
            continue
        found += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_direction_of_imports(path: Path) -> None:
    """Nothing imports `benchmarks`, which may import all; `plugin` never imports `app`; `app` knows the checkpoint
    facts, two modules of it know vLLM, and its command line knows that of the training.
    """
    name = module(path)
    for imported in imports(path):
        if inside(name, "benchmarks"):
            continue
        assert not inside(imported, "benchmarks"), f"{name} imports {imported}"
        if inside(name, "plugin"):
            assert not inside(imported, "app"), f"{name} imports {imported}"
            continue
        if inside(imported, "plugin"):
            known = KNOWN_TO_THE_COMMAND if name == "app.cli" else KNOWN_TO_THE_APP
            origin = (name, imported) == ("app", "plugin")  # it looks where that was imported from
            assert origin or any(inside(imported, one) for one in known), f"{name} imports {imported}"
        assert not inside(imported, "vllm") or name in VLLM_MODULES, f"{name} imports {imported}"
        assert not inside(imported, "torch"), f"{name} imports {imported}"


def test_routes_know_only_the_port() -> None:
    for path in ROOT.glob("app/routes/*.py"):
        assert not set(imports(path)) & VLLM_MODULES, path


@pytest.mark.parametrize("path", [*SOURCES, *sorted(ROOT.glob("tests/**/*.py"))], ids=module)
def test_files_are_small_and_named_for_a_noun(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_FILE, f"{path.relative_to(ROOT)} has {lines} lines"
    assert path.stem not in {"utils", "helpers", "common", "misc"}


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_modules_say_why_they_exist(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path.relative_to(ROOT)


def room(name: str, house: str) -> tuple[int, str]:
    """Floor (0 is the top) and room of a module or of a name in it; the innermost room where one is in another."""
    found = [
        (floor, one)
        for floor, rooms in enumerate(FLOORS[house])
        for one in rooms
        if name == one or (one != house and inside(name, one))
    ]
    assert found, f"{name} has no floor: give it one"
    return max(found, key=lambda place: len(place[1]))


@pytest.mark.parametrize("house", FLOORS)
def test_arrows_run_down(house: str) -> None:
    for path in SOURCES:
        name = module(path)
        if not inside(name, house):
            continue
        floor, own = room(name, house)
        for imported in imports(path):
            if inside(imported, house) and imported != house:
                below, other = room(imported, house)
                assert other == own or below > floor, f"{name} imports {imported}"


def test_no_circle_of_imports() -> None:
    """Modules without imports left are taken away, again and again; what stays stands in a circle or over one."""
    names = {module(path) for path in SOURCES}
    left = {module(path): names & set(imports(path, at_start=True)) - {module(path)} for path in SOURCES}
    while bottom := {name for name, imported in left.items() if not imported & left.keys()}:
        left = {name: imported for name, imported in left.items() if name not in bottom}
    assert not left


BLOCK = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {engines!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
for name in {names!r}:
    importlib.import_module(name)
assert not [name for name in sys.modules if name.partition(".")[0] in {engines!r}]
"""


def import_without(engines: tuple[str, ...], names: list[str]) -> None:
    """Imports the modules in a process of its own that cannot import `engines`."""
    code = BLOCK.format(engines=engines, names=names)
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_imports_without_an_engine() -> None:
    """Everything but the model code, the hooks and the training imports with vLLM, torch and triton blocked."""
    names = [name for name in map(module, SOURCES) if not name.startswith(NEED_AN_ENGINE)]
    assert {"app.factory", "app.vllm_engine", "app.cli", "plugin.drafts.checkpoint", "plugin"} <= set(names)
    import_without(ENGINES, names)


def test_the_flags_of_training_need_no_engine() -> None:
    """Its command line, the recipe that the flags come from, and what the benchmark client reads prompts with."""
    names = ["command", "settings", "data.sources", "data.profiles", "data.problems.generate"]
    import_without(ENGINES, [f"plugin.training.{name}" for name in names])


def test_the_markov_head_needs_torch_alone() -> None:
    """Training takes it from the serving side."""
    import_without(("vllm",), ["plugin.drafts.markov"])


INDEPENDENT_TABLES = (
    "tests/plugin/drafts/folders.py",
    "tests/plugin/drafts/test_families.py",
    "tests/plugin/training/draft/test_checkpoint.py",
    "tests/plugin/training/draft/test_shape.py",
    "tests/engine/test_full_size.py",
    "tests/engine/test_random_drafts.py",
    "tests/reference/",
    "tests/test_config.py",
)
"""Tests that spell the published names and numbers themselves, since they would follow the registry's mistakes."""


def family_tables(path: Path, at_least: int) -> list[int]:
    """Line numbers of the tuples, lists, sets and dicts that spell so many families."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        items = [*node.keys, *node.values] if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        spelled = {item.value for item in items if isinstance(item, ast.Constant)}
        if len(spelled & FAMILIES.keys()) >= at_least:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_one_registry_of_families(path: Path) -> None:
    """Only `plugin.drafts.families` spells a table of families; a type of their names is one, too."""
    registry = ROOT / "plugin" / "drafts" / "families.py"
    assert bool(family_tables(path, at_least=2)) == (path == registry)


def test_tests_take_all_families_from_the_registry() -> None:
    """A test may choose two of them; one that lists all would not see a fourth."""
    for path in sorted(ROOT.glob("tests/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(INDEPENDENT_TABLES):
            spelled = family_tables(path, at_least=3)
            assert not spelled, f"{name}: lines {spelled}"
