"""No request waits for what a first request of its kind would have to build (N01)."""

from __future__ import annotations

import os
import re
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.completions.request import REFUSED, CompletionRequest
from tests.engine.gateway.process import GatewayProcess, gateway
from tests.engine.gateway.requests import PROMPT

pytestmark = pytest.mark.engine

TIMES_THE_MEDIAN = 3.0
ALLOWANCE_S = 0.5
"""Beside it, for two cores that other programs share."""
COMPILERS = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cpp|nvcc|icx|icpx|ld|as)(-[\d.]+)?")

SAMPLED = {"temperature": 0.9, "seed": 3}
KINDS: dict[str, dict[str, Any]] = {
    "add_special_tokens": {"add_special_tokens": False},
    "allowed_token_ids": {"allowed_token_ids": [40, 41, 42]},
    "bad_words": {"bad_words": ["train"]},
    "echo": {"echo": True},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "ignore_eos": {"ignore_eos": True},
    "include_stop_str_in_output": {"stop": ["e"], "include_stop_str_in_output": True},
    "logit_bias": {"logit_bias": {"40": 2}},
    "logprob_token_ids": {"logprobs": 1, "logprob_token_ids": [40, 41]},
    "logprobs": {"logprobs": 1},
    "max_completion_tokens": {"max_completion_tokens": 5},
    "min_p": {"min_p": 0.1, **SAMPLED},
    "min_tokens": {"min_tokens": 4},
    "n": {"n": 2, **SAMPLED},
    "presence_penalty": {"presence_penalty": 0.5},
    "prompt": {"prompt": [PROMPT, "Tom has 5 apples."]},
    "repetition_detection": {
        "repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 3}
    },
    "repetition_penalty": {"repetition_penalty": 1.2},
    "request_metrics": {"request_metrics": "detailed"},
    "response_format": {"response_format": {"type": "json_object"}},
    "return_token_ids": {"return_token_ids": True},
    "return_tokens_as_token_ids": {"logprobs": 0, "return_tokens_as_token_ids": True},
    "seed": {"seed": 5, "temperature": 1},
    "skip_special_tokens": {"skip_special_tokens": False},
    "spaces_between_special_tokens": {"spaces_between_special_tokens": False},
    "stop": {"stop": ["average"]},
    "stop_token_ids": {"stop_token_ids": [40]},
    "stream_interval": {"stream_interval": 3},
    "structured_outputs": {"structured_outputs": {"regex": "[a-z]{5}"}},
    "temperature": {"temperature": 1},
    "top_k": {"top_k": 4, **SAMPLED},
    "top_p": {"top_p": 0.8, **SAMPLED},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 4},
    "truncation_side": {"truncate_prompt_tokens": 4, "truncation_side": "left"},
    # Forms of a field, and combinations, that run other code.
    "choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
    "json": {"structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    "multipleOf": {"structured_outputs": {"json": {"type": "integer", "multipleOf": 2}}},
    "top_k and top_p": {"top_k": 4, "top_p": 0.8, **SAMPLED},
    "logprobs, sampled": {"logprobs": 20, **SAMPLED},
    "all": {
        "top_k": 9,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "repetition_penalty": 1.1,
        "logprobs": 5,
        "bad_words": ["train"],
        "structured_outputs": {"regex": "[a-z ]+"},
        "n": 2,
        **SAMPLED,
    },
}
CHANGE_NOTHING = {
    "best_of",
    "cache_salt",
    "max_tokens",
    "model",
    "request_id",
    "session_id",
    "stream",
    "stream_options",
    "user",
}
"""Served fields that neither choose tokens nor shape the answer, and those that every request here has."""
NOT_WITH_A_DRAFT = {"logit_bias", "min_p", "logprob_token_ids"}


def test_every_field_is_tried() -> None:
    assert set(CompletionRequest.model_fields) - set(REFUSED) - CHANGE_NOTHING <= set(KINDS)


@pytest.fixture
def path_without_compilers(tmp_path: Path) -> str:
    """A folder of links to whatever PATH has but compilers."""
    links = tmp_path / "bin"
    links.mkdir()
    for folder in os.environ["PATH"].split(":"):
        for tool in Path(folder).glob("*"):
            link = links / tool.name
            if not COMPILERS.fullmatch(tool.name) and not link.is_symlink():
                link.symlink_to(tool)
    return str(links)


class Neighbour:
    """Streams one answer after the other; `longest` is the longest silence within a stream, seconds."""

    def __init__(self, server: GatewayProcess) -> None:
        self.server, self.longest, self.answers = server, 0.0, 0
        self.faults: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "temperature": 0, "stream": True}
        while not self._ended.is_set():
            with httpx.stream("POST", self.server.url + "/v1/completions", json=body, timeout=60) as reply:
                before, last = time.monotonic(), ""
                for line in reply.iter_lines():
                    now = time.monotonic()
                    self.longest, before = max(self.longest, now - before), now
                    last = line or last
            if reply.status_code != 200 or last != "data: [DONE]":
                self.faults.append(f"{reply.status_code} {last}")
            self.answers += 1


def seconds(server: GatewayProcess, body: dict[str, Any]) -> float:
    """How long one reply took, which must be whole."""
    began = time.monotonic()
    reply = server.complete(**{"prompt": PROMPT, "max_tokens": 12, **body})
    took = time.monotonic() - began
    assert reply.status_code == 200, (body, reply.text)
    if body["stream"]:
        assert reply.text.endswith("data: [DONE]\n\n") and '"error"' not in reply.text, (body, reply.text)
    else:
        assert reply.json()["choices"]
    return took


@pytest.fixture(params=["with a draft", "without a draft"])
def bare_server(
    request: pytest.FixtureRequest, path_without_compilers: str, tmp_path: Path
) -> Iterator[tuple[GatewayProcess, set[str]]]:
    """A server that cannot compile and has nothing compiled before; and the kinds that it refuses."""
    drafted = request.param == "with a draft"
    caches = {
        name: str(tmp_path / name)
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")
    }
    environment = {**caches, "PATH": path_without_compilers, "CC": "", "CXX": ""}
    settings = {} if drafted else {"draft": "none"}
    with gateway(environment, max_model_len=256, max_encoder_len=64, **settings) as server:
        assert server.metric("vllm:generation_tokens_total") == 0  # the warm-up is counted nowhere
        yield server, NOT_WITH_A_DRAFT if drafted else set()


def test_no_first_request_waits(bare_server: tuple[GatewayProcess, set[str]]) -> None:
    """Every kind, whole and streamed, while a neighbour streams: the first of each within three times the median of the
    kind's repeats, no answer lost.
    """
    server, refused = bare_server
    late = []
    with Neighbour(server) as neighbour:
        for name, body in KINDS.items():
            if name in refused:
                continue
            whole, streamed, *later = (
                seconds(server, {**body, "stream": stream}) for stream in (False, True, False, True)
            )
            if max(whole, streamed) > TIMES_THE_MEDIAN * statistics.median(later) + ALLOWANCE_S:
                late.append((name, whole, streamed, later))
    assert late == []
    assert neighbour.faults == [] and neighbour.answers > 10
    assert neighbour.longest < 1.0
    assert server.process.poll() is None and "Traceback" not in server.log()
