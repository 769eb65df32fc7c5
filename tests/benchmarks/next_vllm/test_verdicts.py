"""Every way in which another version can differ is seen, with made-up packages of a few lines."""

from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.next_vllm import signatures
from benchmarks.next_vllm.source_tree import SourceTree
from benchmarks.next_vllm.uses import Reader, Use
from benchmarks.next_vllm.verdicts import judge

OURS = """
    from vllm.core import Base, Config, make
    from vllm.tables import TABLE

    class Own(Base):
        def step(self, batch, more=None):
            return super().step(batch) + self.size

    def run(config: Config):
        made = make(config, width=3)
        return config.cache.blocks, made.length, TABLE
    """
OLD = {
    "core": """
        from abc import abstractmethod
        from dataclasses import dataclass

        @dataclass
        class Cache:
            blocks: int

        @dataclass
        class Config:
            cache: Cache | None

        class Made:
            def __init__(self):
                self.length = 1

        class Base:
            def __init__(self, size):
                self.size = size

            @abstractmethod
            def step(self, batch): ...

        def make(config, width) -> Made:
            return Made()
        """,
    "tables": "from vllm.core import make as TABLE",
}


def tree(folder: Path, package: str, files: dict[str, str]) -> SourceTree:
    """A package of these modules below the folder."""
    (folder / package).mkdir(parents=True)
    for name, text in {"__init__": "", **files}.items():
        (folder / package / f"{name}.py").write_text(dedent(text))
    return SourceTree({package: folder})


def changed(tmp_path: Path, ours: str, old: dict[str, str], new: dict[str, str], uses: tuple[Use, ...] = ()):
    """What is not the same, as `{address: (status, breaks)}`."""
    own = tree(tmp_path / "ours", "plugin", {"module": ours})
    before, after = tree(tmp_path / "old", "vllm", old), tree(tmp_path / "new", "vllm", new)
    reader = Reader(SourceTree({**own.packages, **before.packages}), "plugin.module", "vllm").read()
    verdicts = judge([*reader.uses, *uses], before, after, reader.elsewhere)
    return {
        ".".join((one.use.module.removeprefix("vllm."), *one.use.path)): (one.status, one.breaks)
        for one in verdicts
        if one.status != "same"
    }


def edited(module: str, before: str, after: str) -> dict[str, str]:
    assert before in OLD[module]
    return {**OLD, module: OLD[module].replace(before, after)}


GONE, SIGNATURE = ("gone", True), ("changed signature", True)


@pytest.mark.parametrize(
    ("new", "found"),
    [
        (OLD, {}),
        (edited("core", "return Made()", "return Made()  # here"), {}),
        (edited("core", "blocks: int", "pages: int"), {"core.Cache.blocks": GONE}),
        (edited("core", "self.length = 1", "self.count = 1"), {"core.Made.length": GONE}),
        (edited("core", "self.size = size", "pass"), {"core.Base.size": GONE}),
        (
            edited("core", "def step(self, batch)", "def run(self)"),
            {"core.Base.step": GONE, "core.Base": ("new abstract method", True)},
        ),
        (edited("core", "step(self, batch)", "step(self, now, batch)"), {"core.Base.step": SIGNATURE}),
        (edited("core", "step(self, batch)", "step(self, batch, now)"), {"core.Base.step": SIGNATURE}),
        (
            edited("core", "(self, batch): ...", "(self, batch): return 0"),
            {"core.Base.step": ("body changed", False)},
        ),
        (edited("core", "make(config, width)", "make(config, breadth)"), {"core.make": SIGNATURE}),
        (edited("core", "make(config, width)", "make(config, width, depth)"), {"core.make": SIGNATURE}),
        (edited("core", "make(config, width)", "make(config, width, depth=1)"), {}),
        (edited("tables", "TABLE", "LIST"), {"tables.TABLE": GONE}),
        ({**OLD, "lists": "TABLE = 1", "tables": "from vllm.lists import TABLE"}, {}),
        ({**OLD, "lists": "TABLE = 1", "tables": ""}, {"tables.TABLE": ("moved", True)}),
    ],
)
def test_each_difference_is_seen(tmp_path, new, found):
    assert changed(tmp_path, OURS, OLD, new) == found


def test_what_moved_is_named_and_is_served_where_our_code_looks_first(tmp_path):
    old, new = {"old": "def plan(): ..."}, {"old": "", "planning": "def plan(): ..."}
    plain = "from vllm.old import plan"
    assert changed(tmp_path / "1", plain, old, new) == {"old.plan": ("moved", True)}
    both = """
        try:
            from vllm.planning import plan
        except ImportError:
            from vllm.old import plan
        """
    assert changed(tmp_path / "2", both, old, new) == {"old.plan": ("moved", False)}
    modules = """
        try:
            from vllm import planning
        except ImportError:
            from vllm import old as planning

        planning.plan()
        """
    assert changed(tmp_path / "3", modules, old, new) == dict.fromkeys(("old", "old.plan"), ("moved", False))


def hook(
    function, parameters: tuple[str, ...], optional: bool = False, path: tuple[str, ...] = ("f",)
) -> Use:
    ours = signatures.of_callable(function)
    return Use("hook", "vllm.m", path, ours=ours, parameters=parameters, optional=optional)


CALLER = "def caller(): return f"


@pytest.mark.parametrize(
    ("function", "new", "found"),
    [
        (lambda a: a, "def f(a): ...", {}),
        (lambda a: a, "def f(a, b=0): ...", {"m.f": ("changed signature", True)}),
        (lambda a, **more: a, "def f(a, b=0): ...", {"m.f": ("changed signature", False)}),
        (lambda a, **more: a, "def f(a, b): ...", {"m.f": ("changed signature", True)}),
        (lambda a, **more: a, "def f(b=0, a=0): ...", {"m.f": ("changed signature", True)}),
        (lambda a: a, "def f(a): return 1", {"m.f": ("body changed", False)}),
        (lambda a: a, "", {"m.f": ("gone", True)}),
    ],
)
def test_hooks(tmp_path, function, new, found):
    use = hook(function, ("a",))
    assert (
        changed(tmp_path, "", {"m": f"def f(a): ...\n{CALLER}"}, {"m": f"{new}\n{CALLER}"}, (use,)) == found
    )


def test_a_hook_that_is_not_needed_and_one_that_nobody_would_call(tmp_path):
    old = {"m": f"def f(a): ...\n{CALLER}"}
    optional = hook(lambda a: a, ("a",), optional=True)
    assert changed(tmp_path / "1", "", old, {"m": ""}, (optional,)) == {"m.f": ("gone", False)}
    passed_on = {"m": "from vllm.n import f", "n": old["m"]}
    seen = changed(tmp_path / "2", "", old, passed_on, (hook(lambda a: a, ("a",)),))
    assert seen == {"m.f": ("not used there", True)}


def test_attributes_in_a_replacement_are_those_of_what_it_replaces(tmp_path):
    ours = """
        def hook():
            from vllm.m import Runner

            def make(stock):
                def run(self, request):
                    return self.count + request.length

                return run

            replace(Runner, "run", ("self", "request"), make)
        """
    old = """
        class Request:
            length: int

        class Runner:
            count: int

            def run(self, request: Request): ...
        """
    new = old.replace("length", "size").replace("count", "number")
    found = changed(tmp_path, ours, {"m": old}, {"m": new})
    assert found == {"m.Request.length": ("gone", True), "m.Runner.count": ("gone", True)}


def test_a_log_line_that_is_worded_anew(tmp_path):
    use = Use("text", "vllm.m", (), text="Add %d")
    found = changed(tmp_path, "", {"m": "log('Add %d pages')"}, {"m": "log('Adding %d')"}, (use,))
    assert found == {"m": ("gone", False)}
