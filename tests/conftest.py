"""The whole suite in two workers: in which order, with how many threads."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# A busy machine may be slow; that is no finding.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

LONGEST = (
    "tests/engine/test_fitted_drafts.py",
    "tests/engine/test_random_drafts.py",
    "tests/engine/gateway/",
    "tests/engine/test_demo.py",
    "tests/app/test_openapi.py",
)
"""What takes minutes begins first, so that both workers end together; then all that start an engine, then the rest."""

SHARES_A_SERVER = "tests/engine/gateway/"


class ByEngine(LoadScopeScheduling):
    """A file's tests share an engine and stay in one worker; those of one folder share a server and do, too.

    pytest-xdist's own way to say so, `--dist loadgroup`, is not heard under pytest 9.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SHARES_A_SERVER):
            return SHARES_A_SERVER
        return nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByEngine:
    config.option.loadscopereorder = False  # the order is `pytest_collection_modifyitems`'s
    return ByEngine(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        for index, name in enumerate(LONGEST):
            if item.nodeid.startswith(name):
                return index
        return len(LONGEST) + (item.get_closest_marker("engine") is None)

    items.sort(key=place)
