"""The requests of a soak: of every kind that the API has, each with an answer that does not depend on K or neighbours.

Greedy outputs are the same at every K. Several samples need a temperature; with `top_k` 1 they are the greedy output,
too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

COMPLETIONS, TOKENIZE, DRAFT_LENGTH = "/v1/completions", "/tokenize", "/drafts/k"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}

WEIGHTS = {
    "whole": 14,
    "stream": 16,
    "ids": 6,
    "stop": 8,
    "structured": 6,
    "logprobs": 6,
    "samples": 6,
    "list": 5,
    "echo": 3,
    "penalties": 4,
    "ends": 4,
    "sampled": 3,
    "long": 3,
    "refused": 7,
    "tokenize": 2,
    "leaves": 6,
    "leaves waiting": 2,
    "K": 2,
}
"""Kind -> its share of the requests, percent or nearly."""


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `leaves_after`: the client leaves after so many events of the stream, 0: once it has sent the body.
    Not `exact`: only lengths and ends must be those of the answer alone, since the draws depend on K.
    """

    kind: str
    body: Mapping[str, Any] | bytes
    path: str = COMPLETIONS
    leaves_after: int | None = None
    exact: bool = True

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()

    @property
    def streams(self) -> bool:
        return isinstance(self.body, Mapping) and bool(self.body.get("stream"))

    @property
    def stops(self) -> bool:
        return isinstance(self.body, Mapping) and bool(self.body.get("stop"))

    @property
    def alone(self) -> Case:
        """The same in one piece and to its end: what has the same answer."""
        if isinstance(self.body, bytes):
            return self
        body = {name: value for name, value in self.body.items() if name not in STREAM}
        return Case("alone", body, self.path)

    @property
    def sequences(self) -> int:
        """What the engine runs for it, refusals apart."""
        if self.path != COMPLETIONS or isinstance(self.body, bytes) or self.body.get("max_tokens") == 0:
            return 0
        prompt = self.body["prompt"]
        prompts = 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)
        return prompts * int(self.body.get("n", 1))


def plain(prompt: Any, index: int, **fields: Any) -> dict[str, Any]:
    """A greedy request of 16 to 40 tokens."""
    return {
        "prompt": prompt,
        "max_tokens": 16 + 8 * (index % 4),
        "temperature": 0,
        "return_token_ids": True,
        **fields,
    }


def bases(prompts: Sequence[str]) -> list[Case]:
    """One case a prompt, whose answers `of_every_kind` needs."""
    return [Case("whole", plain(prompt, index)) for index, prompt in enumerate(prompts)]


def of_every_kind(
    prompts: Sequence[str], ids: Sequence[Sequence[int]], texts: Sequence[str], longest: int, max_k: int
) -> dict[str, list[Case]]:
    """Kind -> its different cases.

    Args:
        prompts: texts of requests.
        ids: the same as tokens.
        texts: the answers of `bases`.
        longest: tokens that a prompt may have.
        max_k: the largest K; 0 where it cannot be changed.
    """
    whole = bases(prompts)
    cases = {
        "whole": whole,
        "ids": _bodies("ids", (plain(list(one), i) for i, one in enumerate(ids))),
        "stop": _bodies("stop", _stops(prompts, texts)),
        "structured": _bodies("structured", _structured(prompts)),
        "logprobs": _bodies("logprobs", (plain(p, i, logprobs=i % 4) for i, p in enumerate(prompts))),
        "samples": _bodies(
            "samples", (plain(p, i, n=3, temperature=0.7, top_k=1) for i, p in enumerate(prompts))
        ),
        "list": _bodies("list", (plain(list(prompts[i : i + 3]), i) for i in range(0, len(prompts), 2))),
        "echo": _bodies("echo", _echoes(prompts)),
        "penalties": _bodies("penalties", _penalties(prompts)),
        "ends": _bodies("ends", _ends(prompts, ids)),
        "sampled": [
            Case("sampled", plain(p, i, temperature=1.0, seed=i, ignore_eos=True), exact=False)
            for i, p in enumerate(prompts)
        ],
        "long": _bodies(
            "long", (plain(list(islice(cycle(one), longest)), 0) for one in ids[: max(2, len(ids) // 4)])
        ),
        "refused": [Case("refused", body) for body in _refused(prompts[0], longest)],
        "tokenize": [Case("tokenize", {"prompt": prompt}, TOKENIZE) for prompt in prompts],
    }
    for kind in ("stop", "structured", "logprobs", "samples", "list", "echo", "penalties", "ends", "long"):
        cases[kind] += [replace(case, body={**_fields(case), **STREAM}) for case in cases[kind]]
    streams = [replace(case, kind="stream", body={**_fields(case), **STREAM}) for case in whole]
    cases["stream"] = streams
    cases["leaves"] = [
        replace(case, kind="leaves", leaves_after=1 + i % 3)
        for i, case in enumerate([*streams, *cases["list"]])
        if case.streams
    ]
    cases["leaves waiting"] = [
        replace(case, kind="leaves waiting", leaves_after=0) for case in (*whole, *streams, *cases["samples"])
    ]
    if max_k:
        ks = [*range(max_k + 1), "auto"]
        cases["K"] = [Case("K", {"k": k}, DRAFT_LENGTH) for k in ks]
    return cases


def mixed(cases: Mapping[str, Sequence[Case]], count: int, seed: int) -> list[Case]:
    """So many cases in an order that the seed decides, the kinds by their weights."""
    draw = random.Random(seed)
    kinds = draw.choices(list(cases), [WEIGHTS[kind] for kind in cases], k=count)
    return [draw.choice(cases[kind]) for kind in kinds]


def _fields(case: Case) -> Mapping[str, Any]:
    assert not isinstance(case.body, bytes)
    return case.body


def _bodies(kind: str, bodies: Iterator[Mapping[str, Any]]) -> list[Case]:
    return [Case(kind, body) for body in bodies]


def _stops(prompts: Sequence[str], texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Strings that begin and end inside of tokens, alone and among others."""
    for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        begin = len(text) // 2
        stop: Any = text[begin : begin + 3] or "."
        yield plain(prompt, index, stop=[stop, "\u0002never"] if index % 2 else stop)


def _structured(prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    constraints: list[dict[str, Any]] = [
        {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
        {"structured_outputs": {"regex": "[0-9]{3}-[a-z]{2}"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
    ]
    for index, prompt in enumerate(prompts):
        yield plain(prompt, index, **constraints[index % 3])


def _echoes(prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
    for index, prompt in enumerate(prompts):
        yield plain(prompt, index, echo=True) | ({"max_tokens": 0} if index % 2 else {})


def _penalties(prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
    kinds: list[dict[str, Any]] = [
        {"frequency_penalty": 1.5, "presence_penalty": 1.0},
        {"repetition_penalty": 1.3},
        {"bad_words": ["is", "the"]},
    ]
    for index, prompt in enumerate(prompts):
        yield plain(prompt, index, **kinds[index % 3])


def _ends(prompts: Sequence[str], ids: Sequence[Sequence[int]]) -> Iterator[dict[str, Any]]:
    for index, prompt in enumerate(prompts):
        kinds: list[dict[str, Any]] = [
            {"ignore_eos": True, "max_tokens": 60},
            {"min_tokens": 20, "max_tokens": 40},
            {"stop_token_ids": [int(ids[index][-1])]},
        ]
        yield plain(prompt, index, **kinds[index % 3])


def _refused(prompt: str, longest: int) -> Iterator[Mapping[str, Any] | bytes]:
    """What is answered with an error, the same one each time."""
    yield b'{"prompt": "Hi", '
    yield b"[]"
    yield b'{"prompt": "Hi", "temperature": NaN}'
    yield b"\xff\xfe"
    refused: list[dict[str, Any]] = [
        {"model": "no-such-model"},
        {"prompt": ""},
        {"prompt": [[]]},
        {"prompt": [5] * (longest + 1)},
        {"prompt": [2, 10**9]},
        {"n": 0},
        {"n": 2, "temperature": 0},
        {"logprobs": 21},
        {"temperature": 2.5, "stream": True},
        {"stop_token_ids": [-1]},
        {"logit_bias": {"abc": 5}},
        {"structured_outputs": {"regex": "[a"}},
        {"echo": True, "logprobs": 1},
        {"suffix": "x"},
    ]
    for fields in refused:
        yield json.dumps({"prompt": prompt, **fields}).encode()
