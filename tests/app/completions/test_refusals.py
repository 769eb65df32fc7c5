"""What is refused, and that the refusal is a 400 naming the field, at once, with nothing reaching the engine."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest

from app.completions.request import REFUSED
from tests.app.conftest import complete, served
from tests.app.fake_engine import BEYOND, EOS, VOCAB, FakeEngine, tokens

pytestmark = pytest.mark.anyio
OMIT = object()

CASES: list[tuple[str, str, dict[str, Any]]] = [
    *[
        ("A01", "prompt", {"prompt": value})
        for value in ("", [], [[]], [""], None, OMIT, {}, [1, "a"], [[1], "a"])
    ],
    ("A07", "echo", {"echo": True, "logprobs": 2, "max_tokens": 3, "temperature": 0}),
    *[("A08", "logprobs", {"logprobs": value}) for value in (21, 1000000, -2, "five")],
    *[("A19", "temperature", {"temperature": value}) for value in (2.5, -0.1, "hot")],
    ("A22", "n", {"temperature": 0, "n": 2}),
    *[("A23", "n", {"n": value}) for value in (0, -1, 1.5)],
    ("A24", "n", {"n": 1000000}),
    ("A24", "max_tokens", {"max_tokens": 2147483648}),
    ("A24", "max_tokens", {"max_tokens": 99999999999999999999}),
    ("A24", "prompt", {"prompt": ["a"] * 100000}),
    *[
        ("A31", "prompt", {"prompt": value})
        for value in ([2, 999999999], [2, VOCAB], [-1], [9223372036854775808], [2.5], [True])
    ],
    *[
        ("A32", "logit_bias", {"logit_bias": value})
        for value in ({"99999999": 5}, {"-1": 5}, {"abc": 5}, {"5": "x"}, {"9" * 5000: 1}, {"0" * 5000: 1})
    ],
    *[("A33", "stop_token_ids", {"stop_token_ids": value}) for value in ([99999999], [-1], ["x"])],
    *[("A33", "allowed_token_ids", {"allowed_token_ids": value}) for value in ([99999999], [])],
    *[("A34", "request_id", {"request_id": value}) for value in ("a\nb", "a\n", "a b", "é", "", "x" * 257)],
    ("A45", "seed", {"seed": 2**63}),
    ("A45", "seed", {"seed": -(2**63) - 1}),
    ("tokenizer", "prompt", {"prompt": f"a{BEYOND}"}),
    ("budget", "prompt", {"prompt": [5] * 257}),
    ("budget", "prompt", {"prompt": "x" * 256}),
    ("budget", "prompt", {"prompt": "x" * 100000}),
    ("budget", "min_tokens", {"min_tokens": 17}),
    ("budget", "min_tokens", {"min_tokens": 512, "max_tokens": 600}),
    ("budget", "max_tokens", {"max_tokens": 0}),
    ("budget", "truncate_prompt_tokens", {"truncate_prompt_tokens": 257}),
    ("budget", "truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("budget", "truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
    ("fields", "best_of", {"best_of": 2}),
    ("fields", "stop", {"stop": ["a", ""]}),
    ("fields", "bad_words", {"bad_words": [""]}),
    ("fields", "bad_words", {"bad_words": [" "]}),
    ("fields", "bad_words", {"bad_words": [f"w{i}" for i in range(65)]}),
    ("fields", "bad_words", {"bad_words": ["a"], "allowed_token_ids": tokens("a")}),
    ("fields", "bad_words", {"bad_words": ["a"], "allowed_token_ids": [EOS, *tokens("a")], "min_tokens": 1}),
    ("fields", "min_tokens", {"allowed_token_ids": [EOS], "min_tokens": 1}),
    ("fields", "min_tokens", {"allowed_token_ids": [5, EOS], "stop_token_ids": [5], "min_tokens": 1}),
    ("fields", "allowed_token_ids", {"allowed_token_ids": [5] * 1025}),
    ("fields", "stop_token_ids", {"stop_token_ids": [5] * 65}),
    ("fields", "stream_options", {"stream_options": {"include_usage": True}}),
    ("fields", "top_p", {"top_p": 0}),
    ("fields", "presence_penalty", {"presence_penalty": 2.1}),
    ("fields", "logprob_token_ids", {"logprob_token_ids": [5]}),
    ("fields", "response_format", {"response_format": {"type": "json_schema"}}),
    ("fields", "response_format", {"response_format": {"type": "xml"}}),
    ("fields", "structured_outputs", {"structured_outputs": {}}),
    ("fields", "structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
    ("fields", "structured_outputs", {"structured_outputs": {"choice": []}}),
    (
        "fields",
        "response_format",
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
    ),
    *[
        ("N03", "structured_outputs", {"structured_outputs": one})
        for one in ({"regex": "a" * 40_000}, {"choice": ["ab"] * 9000}, {"json": {"enum": ["ab"] * 9000}})
    ],
    *[
        ("N03", "structured_outputs", {"structured_outputs": one})
        for one in (
            {"json": {"type": "array", "maxItems": 10**7}},
            {"json": {"type": "array", "minItems": 10**9}},
            {"json": {"anyOf": [{"minItems": 9000, "maxItems": 1}, {"minItems": 1, "maxItems": 9000}]}},
            {"json": '{"anyOf": [{"maxItems": 1e4}, {"items": {"maxItems": 10000}}]}'},
            {"structural_tag": '{"format": {"json_schema": {"maxItems": 20000}}}'},
            {"grammar": 'start: a | b\na: %json {"minItems": 9000}\nb: %json\n{"items": {"maxItems": 9000}}'},
        )
    ],
    (
        "N03",
        "response_format",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"enum": ["ab"] * 9000}},
            }
        },
    ),
    ("fields", "repetition_detection", {"repetition_detection": {"max_pattern_size": 3, "min_count": 1}}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("case", "param", "fields"), CASES)
async def test_refused_with_the_field_named(
    case: str, param: str, fields: dict[str, Any], stream: bool
) -> None:
    engine = FakeEngine()
    body = {"model": "demo", "prompt": "Hi", "stream": stream, **fields}
    if stream and "stream_options" in fields:
        body["stream"] = False
    async with served(engine, max_queued_requests=2000) as client:
        began = time.process_time()
        reply = await client.post("/v1/completions", json={k: v for k, v in body.items() if v is not OMIT})
        assert time.process_time() - began < 5  # a collection of what engine tests left may fall into it
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, 400, param), (case, error)
        assert reply.headers["content-type"] == "application/json"
        assert not engine.seen
        after = await complete(client)
        assert after.status_code == 200 and after.json()["choices"][0]["text"]


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_refused_fields_name_their_reason(name: str) -> None:
    """Every field of `REFUSED` is refused when it asks for something."""
    async with served() as client:
        reply = await complete(client, **{name: 3})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, name)
        assert REFUSED[name] in error["message"]


@pytest.mark.parametrize(
    "fields",
    [{"logit_bias": {"5": 1}}, {"min_p": 0.1}, {"logprobs": 1, "logprob_token_ids": [5]}],
)
async def test_refused_with_a_draft_only(fields: dict[str, Any]) -> None:
    """What vLLM cannot do beside a draft is refused, never dropped; without a draft it is served (A32)."""
    async with served(FakeEngine(k=3)) as client:
        error = (await complete(client, **fields)).json()["error"]
        assert error["code"] == 400 and error["param"] == list(fields)[-1]
        assert "speculative decoding" in error["message"]
    async with served(FakeEngine()) as client:
        assert (await complete(client, **fields)).status_code == 200


@pytest.mark.parametrize(
    ("param", "raw"),
    [
        ("temperature", '"temperature":NaN'),
        ("top_p", '"top_p":Infinity'),
        ("presence_penalty", '"presence_penalty":-Infinity'),
        ("temperature", '"temperature":1e999'),
        ("seed", '"seed":1e400'),
    ],
)
async def test_no_number(param: str, raw: str) -> None:
    """NaN and infinities are refused, and the reply itself is strict JSON (A18)."""
    engine = FakeEngine()
    async with served(engine) as client:
        reply = await client.post("/v1/completions", content='{"prompt":"Hi",' + raw + "}")

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        error = json.loads(reply.text, parse_constant=refuse)["error"]
        assert reply.status_code == 400 and error["param"] in (param, None)
        assert not engine.seen


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"prompt":"\\ud800"}'])
async def test_no_json_object(content: bytes) -> None:
    async with served() as client:
        reply = await client.post("/v1/completions", content=content)
        assert reply.status_code == 400 and reply.json()["error"]["code"] == 400


async def test_other_content_type() -> None:
    async with served() as client:
        reply = await client.post("/v1/completions", data={"prompt": "Hi"})
        assert reply.status_code == 415 and "application/json" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields", [{"logprobs": 20}, {"temperature": 2.0}, {"n": None}, {"max_tokens": None}]
)
async def test_limits_are_inside(fields: dict[str, Any]) -> None:
    """The largest values and null, each for what it means, are served (A08, A19, A23)."""
    async with served() as client:
        reply = await complete(client, **fields)
        assert reply.status_code == 200, reply.text
        if "logprobs" in fields:
            tops = reply.json()["choices"][0]["logprobs"]["top_logprobs"]
            assert tops and all(len(top) in (20, 21) for top in tops)


async def test_last_vocabulary_id_is_inside() -> None:
    """The vocabulary is the model config's (A31)."""
    async with served() as client:
        assert (await complete(client, [2, VOCAB - 1])).status_code == 200


async def test_unknown_fields_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Ignored, and named in the log at most once (A41)."""
    async with served() as client:
        for _ in range(2):
            reply = await complete(
                client, foo_a41=1, best_of=1, user="u1", metadata={}, service_tier="auto", store=False
            )
            assert reply.status_code == 200
    named = [record for record in caplog.records if "foo_a41" in record.getMessage()]
    assert len(named) <= 1 and all(record.levelno <= logging.WARNING for record in named)
