"""The whole suite in two workers: in which order, with how many threads."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# A busy machine may be slow; that is no finding.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

LONGEST = ("test_drafts.py", "test_demo.py", "test_openapi.py")
"""What takes minutes begins first, so that both workers end together; then all that start an engine, then the rest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        if item.path.name in LONGEST and item.path.parent.name in ("engine", "app"):
            return LONGEST.index(item.path.name)
        return len(LONGEST) + (item.get_closest_marker("engine") is None)

    items.sort(key=place)
