"""The published `vllm serve` commands, in their CPU form, with only the plugin installed.

A whole server is started once (its CLI needs a distribution called vllm, which the CPU build is not: the same module is
run as a script); the other commands are read by vLLM's own argument parser and started inside this process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from plugin.drafts.checkpoint import DEMO
from plugin.drafts.families import FAMILIES
from tests.engine.harness import Job, engine
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.engine

PUBLISHED = [
    "--trust-remote-code",
    "--no-enable-chunked-prefill",
    "--max-model-len",
    "512",
    "--max-num-seqs",
    "1",
]
CPU = ["--dtype", "float32", "--enforce-eager"]
PROMPT = (2, 40, 300, 77, 90, 5, 410, 33)


def parsed(*command: str) -> AsyncEngineArgs:
    """The engine arguments that `vllm serve <command>` makes."""
    parser = make_arg_parser(FlexibleArgumentParser())
    return AsyncEngineArgs.from_cli_args(parser.parse_args([*command, *CPU]))


def answer(arguments: AsyncEngineArgs) -> tuple[tuple[int, ...], int]:
    """Greedy ids of one prompt, and how many drafts were made for them."""
    given = {
        name: getattr(arguments, name)
        for name in (
            "speculative_config",
            "max_model_len",
            "max_num_seqs",
            "trust_remote_code",
            "enable_chunked_prefill",
        )
    }
    with engine(Path(arguments.model), max_encoder_len=given["max_model_len"], **given) as running:
        (got,) = running.run([Job(PROMPT, 24, ignore_eos=True)])
        return got.tokens, running.counters.drafts


@pytest.fixture(scope="module")
def expected() -> tuple[int, ...]:
    return GreedyReference(DEMO / "verifier").answer(PROMPT, 24, ignore_eos=True).tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_as_the_model(family: str, expected: tuple[int, ...]) -> None:
    """`vllm serve <draft> --trust-remote-code --no-enable-chunked-prefill --max-model-len 512 --max-num-seqs 1`."""
    tokens, drafts = answer(parsed("--model", str(DEMO / family), *PUBLISHED))
    assert tokens == expected
    assert drafts > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_beside_the_verifier(family: str, expected: tuple[int, ...]) -> None:
    """`--speculative-config '{"model": <draft>, "method": "dflash", "num_speculative_tokens": 3}'`, any family."""
    speculative = {"model": str(DEMO / family), "method": "dflash", "num_speculative_tokens": 3}
    command = ["--model", str(DEMO / "verifier"), *PUBLISHED, "--speculative-config", json.dumps(speculative)]
    tokens, drafts = answer(parsed(*command))
    assert tokens == expected
    assert drafts >= 24 / 4


def test_a_whole_server_with_the_drafts_router(tmp_path: Path, expected: tuple[int, ...]) -> None:
    """`VLLM_PLUGINS=t5gemma2 vllm serve <draft> ...` completes, and tells the true family and counters (B29)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(DEMO / "dflare")]
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *PUBLISHED, *CPU, "--port", str(port)],
            env=os.environ
            | {"VLLM_PLUGINS": "t5gemma2", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            deadline = time.monotonic() + 240
            while not _healthy(client):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.5)
            body = {"prompt": list(PROMPT), "max_tokens": 24, "temperature": 0, "ignore_eos": True}
            reply = client.post("/v1/completions", json=body | {"return_token_ids": True}).json()
            assert tuple(reply["choices"][0]["token_ids"]) == expected
            drafts = client.get("/drafts").json()
            assert drafts["family"] == "dflare"
            assert drafts["served_model_names"] == [client.get("/v1/models").json()["data"][0]["id"]]
            lifetime = client.get("/drafts/stats").json()["lifetime"]
            text = client.get("/metrics").text
            counted = [x for x in text.splitlines() if x.startswith("vllm:spec_decode_num_drafts_total")]
            assert lifetime["drafts"] == float(counted[0].rpartition(" ")[2]) > 0
    finally:
        process.terminate()
        process.wait(60)


def _healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False
