"""Engine arguments of the arms."""

from __future__ import annotations

from benchmarks.engine.specs import BATCHED_TOKENS, long_prompts


def test_longer_prompts_are_allowed_and_encoded_over_several_steps() -> None:
    found = long_prompts(9000, 128)
    assert (found["hf_overrides"]["max_source_positions"], found["max_num_batched_tokens"]) == (9000, 9000)
    assert found["ec_manager_config"]["manager_config"] == {"cache_bytes": 0, "busy_step_tokens": 128}
    assert long_prompts(2048, 128)["max_num_batched_tokens"] == BATCHED_TOKENS
