"""What a request gets on the real engine."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import PROMPT, events, streamed, whole

pytestmark = pytest.mark.engine


def test_quick_request(server: GatewayProcess) -> None:
    """The README's first request: a right answer, worked out."""
    one = whole(server, PROMPT, max_tokens=128)
    assert "30 miles per hour" in one["text"] and one["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_alone(server: GatewayProcess, stream: bool) -> None:
    """`echo` with no new token gives the prompt back, in one piece and streamed (A03)."""
    reply = server.complete("abc", echo=True, max_tokens=0, stream=stream)
    chunks = events(reply) if stream else [reply.json()]
    assert "".join(c["choices"][0]["text"] for c in chunks) == "abc"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_logprobs(server: GatewayProcess) -> None:
    """`echo` with `logprobs` is refused (A07); 0 shows the chosen token alone (A09), 3 at most 4 alternatives."""
    assert server.complete("Hello", echo=True, logprobs=2, max_tokens=3).json()["error"]["param"] == "echo"
    for count in (0, 3):
        found = whole(server, PROMPT, max_tokens=3, logprobs=count)["logprobs"]
        assert len(found["token_logprobs"]) == 3 and all(-50 < x <= 0 for x in found["token_logprobs"])
        assert all(1 <= len(top) <= count + 1 for top in found["top_logprobs"])
        assert len(found["tokens"]) == len(found["text_offset"]) == 3


def test_stream_equals_body(server: GatewayProcess) -> None:
    """The same text, cut inside a character or not; replacement characters only where nothing can follow (A15)."""
    for limit in (1, 2, 3, 5, 8, 13, 21):
        one = whole(server, PROMPT, max_tokens=limit, ignore_eos=True)
        text, reason = streamed(server, PROMPT, max_tokens=limit, ignore_eos=True)
        assert (text, reason) == (one["text"], one["finish_reason"])


def test_greedy_ignores_sampling_fields(server: GatewayProcess) -> None:
    """At temperature 0 `top_p`, `top_k` and `seed` change nothing (A21)."""
    plain = server.text(PROMPT, max_tokens=24)
    assert server.text(PROMPT, max_tokens=24, top_p=0.9, top_k=40, seed=1) == plain


def test_text_and_ids(server: GatewayProcess) -> None:
    """Text equals its ids, BOS once; usage counts encoder tokens in every form (C17, C18), those that need no second
    encoding apart.
    """
    text = "Hello world"
    ids = server.client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert ids[0] == 2 and ids.count(2) == 1
    one, two = server.complete(text, max_tokens=8).json(), server.complete(ids, max_tokens=8).json()
    assert one["choices"][0]["text"] == two["choices"][0]["text"]
    assert two["usage"]["prompt_tokens_details"] == {"cached_tokens": len(ids)}
    assert one["usage"] | {"prompt_tokens_details": two["usage"]["prompt_tokens_details"]} == two["usage"]
    assert one["usage"]["prompt_tokens"] == len(ids)
    both = server.complete([text, text], max_tokens=8).json()
    assert both["usage"]["prompt_tokens"] == 2 * len(ids)
    bare = server.complete(text, max_tokens=8, add_special_tokens=False, return_token_ids=True).json()
    assert bare["choices"][0]["prompt_token_ids"] == ids[1:]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert events(server.complete(text, max_tokens=8, **options))[-1]["usage"] == two["usage"]


def test_seeds(server: GatewayProcess) -> None:
    """The same seed gives the same text alone and beside others; choices of one request differ (A45)."""
    odd = [2, 300, 77, 410, 150, 33]  # no problem that the model knows, so that its samples differ
    fields: dict[str, Any] = {"max_tokens": 24, "temperature": 1.8, "ignore_eos": True}

    def ask(**more: Any) -> list[str]:
        reply = server.complete(odd, **{**fields, **more})
        assert reply.status_code == 200, reply.text
        return [choice["text"] for choice in reply.json()["choices"]]

    texts = [ask(seed=7)]
    for neighbours in ([{}], [{"seed": 1}, {"seed": 2}, {"seed": 3}]):
        with ThreadPoolExecutor(4) as pool:
            others = [pool.submit(ask, **more) for more in neighbours]
            texts.append(pool.submit(ask, seed=7).result())
            for other in others:
                other.result()
    assert texts[0] == texts[1] == texts[2]
    one, two = ask(seed=7, n=2), ask(seed=7, n=2)
    assert one == two and one[0] != one[1]


@pytest.mark.parametrize("words", [["speed"], [" speed"], ["speed", "average"]])
def test_bad_words_are_absent(server: GatewayProcess, words: list[str]) -> None:
    """With a space in front and in other pieces, too, greedy and sampled (N09)."""
    assert "speed" in server.text(PROMPT, max_tokens=60)
    for fields in ({}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "seed": 2}):
        text = server.text(PROMPT, max_tokens=60, bad_words=words, **fields)
        for word in words:
            assert not re.search(rf"\b{word.strip()}\b", text), text


def test_a_phrase_of_many_divisions_is_banned(server: GatewayProcess) -> None:
    """Two words at once can be written in hundreds of ways: not in those that a model takes."""
    assert "average speed" in server.text(PROMPT, max_tokens=60).lower()
    text = server.text(PROMPT, max_tokens=60, bad_words=["average speed", "Average speed"])
    assert "average speed" not in text.lower(), text


def test_what_leaves_nothing_is_refused(server: GatewayProcess) -> None:
    """Before min_tokens only the end token would be allowed: pads were the answer. Without min_tokens it is the end."""
    end = server.complete(PROMPT, max_tokens=64, return_token_ids=True).json()["choices"][0]["token_ids"][-1]
    error = server.complete(PROMPT, allowed_token_ids=[end], min_tokens=2).json()["error"]
    assert (error["code"], error["param"]) == (400, "min_tokens")
    choice = server.complete(PROMPT, allowed_token_ids=[end]).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")


def test_bans_leave_what_is_allowed(server: GatewayProcess) -> None:
    """A ban of all that is allowed is refused instead of answered with other tokens (N10)."""
    error = server.complete(PROMPT, allowed_token_ids=[40], bad_words=["A"]).json()["error"]
    assert (error["code"], error["param"]) == (400, "bad_words")


def test_same_request_id(server: GatewayProcess) -> None:
    """Two requests of one id at once, each with its own text (A34)."""
    prompts = [PROMPT, [2, 60, 61, 62]]
    alone = [server.text(prompt, max_tokens=24) for prompt in prompts]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(2) as pool:
        for more in ({"request_id": "same"}, {}):
            head = {} if more else {"X-Request-Id": "same"}

            def ask(prompt: Any, more: Any = more, head: Any = head) -> Any:
                body = {"prompt": prompt, "temperature": 0, "max_tokens": 24, **more}
                return server.client.post("/v1/completions", json=body, headers=head).json()

            replies = list(pool.map(ask, prompts))
            assert [reply["choices"][0]["text"] for reply in replies] == alone
            assert [reply["id"] for reply in replies] == ["cmpl-same"] * 2


def test_compact_json(server: GatewayProcess) -> None:
    """Without white space where the request says so, beside one that does not; the demo fills JSON with it."""
    numbers = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
    schema = {"type": "object", "properties": {"a": {"enum": ["x y"]}, "b": numbers}, "required": ["a", "b"]}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema | {"additionalProperties": False}},
    }
    with ThreadPoolExecutor(2) as pool:
        loose = pool.submit(whole, server, PROMPT, max_tokens=40, response_format=form)
        options = {"disable_any_whitespace": True}
        compact = whole(server, PROMPT, max_tokens=40, response_format=form, structured_outputs=options)
    assert re.fullmatch(r'\{"a":"x y","b":\[[12],[12]\]\}', compact["text"]), compact
    assert compact["finish_reason"] == "stop"
    assert re.match(r"\{\s", loose.result()["text"])


def test_constraints(server: GatewayProcess) -> None:
    """Valid output beside free neighbours; what the grammar compiler refuses is a 400 naming the field (B25)."""
    free = server.text(PROMPT, max_tokens=16)
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(whole, server, PROMPT, max_tokens=16, structured_outputs={"choice": ["aa", "bb"]}),
            pool.submit(server.text, PROMPT, max_tokens=16),
            pool.submit(whole, server, PROMPT, max_tokens=40, structured_outputs={"regex": "[0-9]{3}"}),
            pool.submit(server.text, PROMPT, max_tokens=16),
        ]
        choice, one, digits, two = [job.result() for job in jobs]
    assert choice["text"] in ("aa", "bb") and one == two == free
    assert len(digits["text"]) == 3 and digits["text"].isdigit()
    for name, value in (
        ("structured_outputs", {"regex": "[a"}),
        ("structured_outputs", {"grammar": "root ::= ("}),
    ):
        error = server.complete(PROMPT, **{name: value}).json()["error"]
        assert (error["code"], error["param"]) == (400, name) and "\n" not in error["message"]
