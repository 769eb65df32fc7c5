"""What the host profile runs: its arms and the demo's engines."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from app.bench.command import positives
from benchmarks.engine.host_profile import ARMS, arms, demo_specs


def test_the_demos_engines_are_those_of_its_folders_and_speculate_where_there_is_a_draft() -> None:
    found = demo_specs(ARMS, [1, 4])
    assert tuple(found) == ARMS
    for name, spec in found.items():
        engine = spec["engine"]
        assert engine["max_num_seqs"] == 4
        folders = [engine["model"], *([engine["speculative_config"]["model"]] if name != "raw" else [])]
        assert all((Path(folder) / "config.json").exists() for folder in folders)
        assert spec["query_len"] == 1 + engine.get("speculative_config", {}).get("num_speculative_tokens", 0)


def test_arms_and_batches_are_read_and_an_arm_that_is_none_is_named() -> None:
    assert (arms("raw,dflare"), positives("1,4,32")) == (["raw", "dflare"], (1, 4, 32))
    with pytest.raises(argparse.ArgumentTypeError, match="no arm is called decoder_only, eagle"):
        arms("decoder_only,raw,eagle")
