"""Where and why generation ends on the real engine."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import PROMPT, streamed, whole

pytestmark = pytest.mark.engine


def test_stop_across_tokens(server: GatewayProcess) -> None:
    """Any substring of the greedy text stops it there, streaming or not, in every form (A11, A13)."""
    text = server.text(PROMPT, max_tokens=48)
    assert len(text) > 12
    for begin in (3, 5, 8):
        stop = text[begin : begin + 3]
        later = text[begin + 3 : begin + 5]
        expected = text[: text.index(stop)]
        for form in (
            stop,
            [stop],
            ["\u0002never", later + "\u0002", stop],
            ["\u0003", "\u0004", "\u0005", "\u0006", stop],
        ):
            one = whole(server, PROMPT, max_tokens=48, stop=form)
            shown, reason = streamed(server, PROMPT, max_tokens=48, stop=form)
            assert one["text"] == shown == expected
            assert one["finish_reason"] == reason == "stop" and one["stop_reason"] == stop


def test_ends(server: GatewayProcess) -> None:
    """The reason of each end; special tokens are never shown (A48, A49)."""
    prompt, length = ending(server)
    one = whole(server, prompt, max_tokens=200)
    assert (one["finish_reason"], one["stop_reason"]) == ("stop", None)
    assert streamed(server, prompt, max_tokens=200) == (one["text"], "stop")
    for limit, reason in ((length - 1, "length"), (length, "stop"), (length + 1, "stop")):
        assert whole(server, prompt, max_tokens=limit)["finish_reason"] == reason
        assert streamed(server, prompt, max_tokens=limit)[1] == reason
    further = server.complete(prompt, max_tokens=length + 20, ignore_eos=True).json()
    assert further["usage"]["completion_tokens"] == length + 20
    assert further["choices"][0]["finish_reason"] == "length"
    for text in (one["text"], further["choices"][0]["text"]):
        assert not any(special in text for special in ("<eos>", "<bos>", "<pad>", "<end_of_turn>", "</s>"))


def ending(server: GatewayProcess) -> tuple[list[int], int]:
    """A prompt whose greedy text ends by EOS, and its number of tokens, EOS included."""
    for first in range(10, 500, 3):
        reply = server.complete([2, first, first + 1, 7], max_tokens=200).json()
        if reply["choices"][0]["finish_reason"] == "stop":
            return [2, first, first + 1, 7], reply["usage"]["completion_tokens"]
    raise AssertionError("no prompt ends by EOS")


def test_client_leaves(server: GatewayProcess) -> None:
    """A client leaves in the stream or while queued: within 2 s the engine is idle and generates no more (A43)."""

    def leave(after: int) -> None:
        body = {"prompt": PROMPT, "max_tokens": 250, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as reply:
            lines = reply.iter_lines()
            for _ in range(after):
                next(lines)

    leave(4)
    busy = [threading.Thread(target=leave, args=(40,)) for _ in range(4)]
    for thread in busy:
        thread.start()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            server.url + "/v1/completions",
            json={"prompt": PROMPT, "max_tokens": 250, "ignore_eos": True},
            timeout=0.1,
        )
    for thread in busy:
        thread.join()
    deadline = time.monotonic() + 2
    while server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = server.metric("vllm:generation_tokens_total")
    time.sleep(0.5)
    assert server.metric("vllm:generation_tokens_total") == before
    assert server.text(PROMPT, max_tokens=8)
    assert "Traceback" not in server.log()
