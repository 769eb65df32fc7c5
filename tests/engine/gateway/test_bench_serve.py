"""`vllm bench serve` against the gateway: the tool that people have, with its speculative-decoding block."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plugin.drafts.checkpoint import DEMO
from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import K

pytestmark = pytest.mark.engine

SHIM = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve` itself needs a distribution called vllm, which the CPU build is not."""


def test_bench_serve(server: GatewayProcess, tmp_path: Path) -> None:
    """Every request succeeds, and the printed numbers of the draft are those of /drafts/stats."""
    before = server.client.get("/drafts/stats").json()["lifetime"]
    flags = [
        "--backend",
        "openai",
        "--endpoint",
        "/v1/completions",
        "--base-url",
        server.url,
        "--model",
        "demo",
    ]
    flags += ["--tokenizer", str(DEMO / "verifier"), "--dataset-name", "random", "--random-input-len", "8"]
    flags += ["--random-output-len", "16", "--num-prompts", "6", "--max-concurrency", "3", "--ignore-eos"]
    flags += [
        "--temperature",
        "0",
        "--save-result",
        "--result-dir",
        str(tmp_path),
        "--result-filename",
        "out.json",
    ]
    done = subprocess.run([sys.executable, "-c", SHIM, *flags], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    after = server.client.get("/drafts/stats").json()["lifetime"]
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["completed"] == 6 and told["total_output_tokens"] == 6 * 16
    drafts, drafted, accepted = (
        after[name] - before[name] for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    # The tool sends one request ahead of its measurement, which the counters of the server have and its own have not.
    assert 0 < told["spec_decode_num_drafts"] <= drafts
    assert told["spec_decode_draft_tokens"] <= drafted and told["spec_decode_accepted_tokens"] <= accepted
    rate = told["spec_decode_accepted_tokens"] / told["spec_decode_draft_tokens"]
    assert told["spec_decode_acceptance_rate"] == pytest.approx(100 * rate)
    assert len(told["spec_decode_per_position_acceptance_rates"]) == K
    assert "Speculative Decoding" in done.stdout and "Acceptance length:" in done.stdout
