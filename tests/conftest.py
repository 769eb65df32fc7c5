"""The whole suite in two workers: who takes what, in which order, with how many threads."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# A busy machine may be slow; that is no finding.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

LONGEST = ("engine/test_drafts.py", "engine/gateway", "engine/test_demo.py", "app/test_openapi.py")
"""What takes minutes begins first, so that both workers end together; then all that start an engine, then the rest."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests share fixtures, the gateway's files even one server: each such group stays in one worker."""
    for item in items:
        folder, name = item.path.parent.name, item.path.name
        group = "engine/gateway" if folder == "gateway" else f"{folder}/{name}"
        item.add_marker(pytest.mark.xdist_group(group))
        item.user_properties.append(("group", group))

    def place(item: pytest.Item) -> int:
        group = dict(item.user_properties)["group"]
        if group in LONGEST:
            return LONGEST.index(str(group))
        return len(LONGEST) + (item.get_closest_marker("engine") is None)

    items.sort(key=place)
