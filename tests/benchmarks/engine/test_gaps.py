"""Gaps of streams: their arithmetic, and the engine core that a worker's function finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.engine import gaps
from benchmarks.engine.gaps import Gaps, Round
from plugin.verifier.encoder.capture import PassSizes


def test_gaps_are_between_the_chunks_of_one_stream() -> None:
    found = Gaps.of([[0.0, 1.0, 2.0, 5.0], [0.5, 1.5]], [1.75, 4.0])
    assert (found.median, found.worst, found.ratio) == (1.0, 3.0, 3.0)
    assert found.longest == ((3.0, 1.0), (1.0, 0.25), (1.0, None), (1.0, None))


def test_a_round_says_what_the_client_and_the_engine_saw() -> None:
    client, engine = Gaps.of([[0.0, 0.001, 0.004]], [0.002]), Gaps.of([[0.0, 0.001, 0.003]], [])
    assert str(Round(client, engine, (0.1, 0.3, 0.2))) == (
        "median 2.00 ms, worst 3.00 (1.50 times); engine: median 1.50 ms, worst 2.00 (1.33 times); "
        "first token 200 ms; longest 3.00 (2 after), 1.00"
    )
    assert (
        str(Round(client, None, ()))
        == "median 2.00 ms, worst 3.00 (1.50 times); longest 3.00 (2 after), 1.00"
    )


class Core:
    """What of vLLM's engine core is looked at: it calls the worker's functions."""

    def __init__(self) -> None:
        self.scheduler = SimpleNamespace(encoder_cache_manager=None)
        self.results: list[Any] = [({0: "outputs"}, True), (None, True), ({}, False), ({0: "more"}, True)]
        self.step_fn = self.step

    def step(self) -> Any:
        return self.results.pop(0)

    def collective_rpc(self, function: Any, *arguments: Any) -> Any:
        return function(None, *arguments)


def test_steps_with_outputs_are_watched_until_they_are_asked_for() -> None:
    core = Core()
    core.collective_rpc(gaps.watch)
    core.collective_rpc(gaps.watch)  # a second time begins anew
    assert [core.step_fn() for _ in range(3)] == [({0: "outputs"}, True), (None, True), ({}, False)]
    (end,) = core.collective_rpc(gaps.watched)
    assert end > 0
    assert core.step_fn == core.step
    core.step_fn()
    assert len(core.collective_rpc(gaps.watched)) == 1


def test_a_worker_in_a_process_of_its_own_cannot_be_watched() -> None:
    gaps.watch(None)
    assert gaps.watched(None) == []
    assert gaps.set_step_tokens(None, 64) is False


def test_a_bound_is_as_if_the_engine_had_been_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from plugin.verifier.encoder.cache import PromptCacheManager
    from tests.reference.tiny import tiny_config

    monkeypatch.setattr("plugin.verifier.encoder.cache.pass_graph_sizes", lambda config: PassSizes((256,)))
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=tiny_config(), dtype=SimpleNamespace(itemsize=2)),
        ec_manager_config=SimpleNamespace(manager_config={"cache_bytes": 100, "busy_step_tokens": 128}),
    )
    core: Any = Core()
    core.vllm_config = config
    manager = PromptCacheManager.create_manager(cache_size=1000, vllm_config=config)
    core.scheduler.encoder_cache_manager = manager
    manager._costs._captured = PassSizes((512,))
    assert core.collective_rpc(gaps.set_step_tokens, 64) is True
    assert (manager._busy_step_tokens, manager._costs._step_tokens) == (64, 64)
    assert manager._costs._captured == PassSizes((512,))
    assert config.ec_manager_config.manager_config["busy_step_tokens"] == 128
