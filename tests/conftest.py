"""The whole suite in two workers: in which order, with how many threads, with which shared fixtures.

A GPU machine may have pytest alone, so nothing else is needed here.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

if find_spec("hypothesis"):
    from hypothesis import settings

    # A busy machine may be slow; that is no finding.
    settings.register_profile("suite", deadline=None)
    settings.load_profile("suite")

pytest_plugins = ["tests.reference.fixtures"]

LONGEST = (
    "tests/gpu/test_equality.py::test_compiled",
    "tests/engine/test_fitted_drafts.py",
    "tests/engine/test_random_drafts.py",
    "tests/engine/gateway/",
    "tests/engine/test_demo.py",
    "tests/app/test_openapi.py",
)
"""What takes minutes begins first, so that both workers end together; then all that start an engine, then the rest."""

SHARES_A_SERVER = "tests/engine/gateway/"


@pytest.fixture
def anyio_backend() -> str:
    """Coroutine tests run on asyncio, as the server does, whatever else is installed."""
    return "asyncio"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests share an engine and stay in one worker; those of one folder share a server and do, too.

    pytest-xdist's own way to say so, `--dist loadgroup`, is not heard under pytest 9. Another `--dist` is left alone:
    GPU tests have an engine each and go to whichever worker is free.
    """
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByEngine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return SHARES_A_SERVER if nodeid.startswith(SHARES_A_SERVER) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False  # the order is `pytest_collection_modifyitems`'s
    return ByEngine(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        for index, name in enumerate(LONGEST):
            if item.nodeid.startswith(name):
                return index
        return len(LONGEST) + (item.get_closest_marker("engine") is None)

    items.sort(key=place)
