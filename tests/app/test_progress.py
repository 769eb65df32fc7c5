"""Loading tells what it is at, and tells it again before ten seconds have passed (N25)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from app import progress
from app.progress import LoadingProgress

pytestmark = pytest.mark.anyio


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(logging.getLogger("app"), "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(logging.getLogger("app"), "level", logging.INFO)
    monkeypatch.setattr(handler, "emit", lambda record: told.append(record.getMessage()))
    return told


def test_no_stage_is_silent_for_ten_seconds(lines: list[str]) -> None:
    """A minute of import, asked every half a second as the gateway does."""
    now = [0.0]
    loading = LoadingProgress(lambda: now[0])
    loading("import", "importing vLLM")
    told_at = [0.0]
    for tick in range(120):
        now[0], before = tick / 2, len(lines)
        loading.remind()
        told_at += [now[0]] * (len(lines) - before)
    assert max(after - before for before, after in zip(told_at, [*told_at[1:], 60.0], strict=True)) < 10
    assert lines[0] == "[  0.0 s] import: importing vLLM"
    assert lines[1] == "[  8.0 s] import: importing vLLM (8 s)"


def test_quick_steps_of_a_stage_are_not_told_one_by_one(lines: list[str]) -> None:
    now = [0.0]
    loading = LoadingProgress(lambda: now[0])
    for step in range(30):
        now[0] = step / 10
        loading("warm-up", f"{step}/30")
    assert [line.split(": ")[1] for line in lines] == ["0/30", "10/30", "20/30"]
    assert (loading.stage, loading.detail) == ("warm-up", "29/30")
    loading("load", "weights")
    assert len(lines) == 4


async def test_reminders_end_with_loading(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_TICK_S", 0.01)
    monkeypatch.setattr(progress, "QUIET_S", 0.05)
    loading, ended = LoadingProgress(), asyncio.Event()
    loading("load", "weights")
    task = asyncio.create_task(loading.remind_until(ended))
    await asyncio.sleep(0.2)
    ended.set()
    await asyncio.wait_for(task, 1)
    assert len(lines) > 1
