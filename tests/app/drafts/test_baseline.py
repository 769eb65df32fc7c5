"""Stored baselines: found again for what they were measured with, and for nothing else."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from app.config.settings import Settings
from app.drafts import baseline
from app.drafts.drafting import Drafting
from plugin.drafts.checkpoint import resolve
from plugin.drafts.steps import StepStats
from tests.app.conftest import DRAFT, build, ready
from tests.app.fake_engine import FakeEngine
from tests.plugin.drafts.folders import write_draft, write_pair

STEPS = [
    {
        "batch": 1,
        "step_seconds": 0.03,
        "error_seconds": 0.001,
        "timed_steps": 90,
        "origin": "live",
        "age_s": 3,
    },
    {
        "batch": 4,
        "step_seconds": 0.04,
        "error_seconds": 0.002,
        "timed_steps": 80,
        "origin": "live",
        "age_s": 3,
    },
]


def key(folder: Path, **changes: Any) -> dict[str, Any]:
    folders = [str(folder / name) for name in ("verifier", "dflash")]
    found = baseline.key_of(folders, changes.pop("dtype", "float32"), changes.pop("eager", None))
    assert found is not None
    return {**found, **changes}


def test_what_was_stored_is_found_again(tmp_path: Path) -> None:
    write_pair(tmp_path)
    path = baseline.store(tmp_path / "kept", key(tmp_path), STEPS)
    content = json.loads(path.read_text())
    content["created"] = time.time() - 3600
    path.write_text(json.dumps(content))
    found = baseline.load(tmp_path / "kept", key(tmp_path), now=5000.0)
    assert {batch: (one.value, one.error, one.steps) for batch, one in found.items()} == {
        1: (0.03, 0.001, 90),
        4: (0.04, 0.002, 80),
    }
    assert found[1].when == pytest.approx(1400, abs=5)


def test_another_key_has_another_file(tmp_path: Path) -> None:
    """Other checkpoints, dtype, eager mode, hardware or versions; the same shapes in another place are the same."""
    write_pair(tmp_path / "a")
    write_pair(tmp_path / "b")
    baseline.store(tmp_path, key(tmp_path / "a"), STEPS)
    assert baseline.load(tmp_path, key(tmp_path / "b"), 0.0)
    others = [
        key(tmp_path / "a", dtype="bfloat16"),
        key(tmp_path / "a", eager=True),
        key(tmp_path / "a", hardware={}),
        key(tmp_path / "a", versions={"vllm": "0.33"}),
    ]
    write_draft(tmp_path / "b" / "dflash", "dflare")
    others.append(key(tmp_path / "b"))
    assert [baseline.load(tmp_path, other, 0.0) for other in others] == [{}] * 5


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"created": 1}', '{"created": 1, "steps": [{"batch": 1}]}']
)
def test_what_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    write_pair(tmp_path)
    path = baseline.store(tmp_path, key(tmp_path), STEPS)
    path.write_text(content)
    assert baseline.load(tmp_path, key(tmp_path), 0.0) == {}


@pytest.mark.anyio
async def test_a_server_reads_it(tmp_path: Path) -> None:
    """For its own checkpoints, once its engine is there; the estimate then says `stored`."""
    write_pair(tmp_path)
    folders = [str(tmp_path / name) for name in ("verifier", "dflash")]
    baseline.store(tmp_path / "kept", key(tmp_path), STEPS)
    drafting = Drafting(DRAFT, 7, Settings(_env_file=None, baseline_dir=tmp_path / "kept", baseline_share=0))
    told: list[int] = []

    async def set_length(k: int) -> None:
        told.append(k)

    await drafting.attach(set_length)
    await drafting.read_baseline(resolve(folders[0], folders[1], None, None), "float32")
    assert drafting.baseline_key == key(tmp_path) and told == [7]
    for _ in range(100):
        drafting.record(StepStats(7, 1, 0.05, {7: (1, (1, 1, 1, 0, 0, 0, 0))}))
    known = drafting.estimator.snapshot()
    found = known.speedup(7) if known is not None else None
    assert found is not None and not isinstance(found, str)
    assert (found.origin, found.value) == ("stored", pytest.approx(4 * 0.03 / 0.05))


@pytest.mark.anyio
async def test_ready_does_not_wait_for_the_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nvidia-smi` may take seconds."""
    asked, answered = threading.Event(), threading.Event()

    def slow() -> dict[str, str]:
        asked.set()
        answered.wait(30)
        return {"cpu": "slow to tell"}

    monkeypatch.setattr(baseline, "hardware", slow)
    write_pair(tmp_path)
    engine = FakeEngine(
        k=7, checkpoints=resolve(*(str(tmp_path / n) for n in ("verifier", "dflash")), None, None)
    )
    async with ready(build(engine)) as app:
        drafting = app.state.gateway.drafting
        assert app.state.gateway.phase == "ready" and drafting.baseline_key is None
        await asyncio.to_thread(asked.wait, 30)
        answered.set()
        while drafting.baseline_key is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert drafting.baseline_key["hardware"] == {"cpu": "slow to tell"}


def test_where_they_are_kept(tmp_path: Path) -> None:
    assert baseline.folder_of(tmp_path) == tmp_path
    assert baseline.folder_of(None) == Path.home() / ".cache" / "t5gemma2" / "baselines"
