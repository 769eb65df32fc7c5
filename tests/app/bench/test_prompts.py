"""Prompt sets: where prompts come from, and the hash that says which they were."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.bench.errors import BenchError
from app.bench.prompts import PLACEHOLDER, SETS, PromptSet, load, published


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_each_set_has_its_own_field(tmp_path: Path) -> None:
    row = {"question": "q", "prompt": "p", "problem": "m", "text": "t", "answer": "never"}
    path = jsonl(tmp_path / "a.jsonl", row)
    wanted = {"gsm8k": "q", "humaneval": "p", "math500": "m", "mbpp": "t", "ultrachat": "p", "mine": "p"}
    for name, prompt in wanted.items():
        assert load(f"{name}={path}", None, 0, {}).prompts == (prompt,)


def test_every_turn_is_a_prompt(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"turns": ["one", "two"]}, {"prompt": ["three", "four"]})
    assert load(f"mtbench={path}", None, 0, {}).prompts == ("one", "two", "three", "four")
    assert load(f"mtbench={path}", 3, 0, {}).prompts == ("one", "two", "three")


def test_packed_files_and_lines_beyond_the_last_prompt(tmp_path: Path) -> None:
    """.gz is unpacked, a byte order mark is left out, and what follows the first N prompts is not read."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"prompt": "a"}\n{"prom'))
    assert load(f"x={path}", 1, 0, {}).prompts == ("a",)
    with pytest.raises(BenchError, match=r"a\.jsonl\.gz:2: no JSON"):
        load(f"x={path}", None, 0, {})


def test_hash_is_of_the_prompts_as_used(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "a.jsonl", {"prompt": "é\n"}, {"prompt": "b"}, {"prompt": "c"})
    again = jsonl(tmp_path / "b.jsonl", {"question": "é\n", "answer": "x"}, {"question": "b"})
    two = load(f"x={first}", 2, 0, {})
    assert two.sha256 == load(f"y={again}", None, 0, {}).sha256
    assert two.sha256 == hashlib.sha256(b'"\\u00e9\\n"\n"b"\n').hexdigest()
    others = [("x", 3, {}), ("x", 2, {"x": "Q: {prompt}"})]
    assert two.sha256 not in [load(f"{name}={first}", n, 0, t).sha256 for name, n, t in others]
    assert (
        PromptSet("x", "s", PLACEHOLDER, ("ab", "c")).sha256
        != PromptSet("x", "s", PLACEHOLDER, ("a", "bc")).sha256
    )


def test_template(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "1 {x}"})
    made = load(f"x={path}", None, 0, {"x": "Solve: {prompt}\nAnswer:"})
    assert made.prompts == ("Solve: 1 {x}\nAnswer:",)
    assert made.to_json()["template"] == "Solve: {prompt}\nAnswer:" and made.to_json()["source"] == "a.jsonl"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": 1}\n', r"a.jsonl:1: no text in prompt or question or text"),
        ('{"prompt": " "}\n', r"a.jsonl:1: no text in"),
        ('{"prompt": "a"}\n\n[1]\n', r"a.jsonl:3: list instead of an object"),
        ('{"prompt": "a"}\n{"prom', r"a.jsonl:2: no JSON"),
        ("\n", r"holds no prompt"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(BenchError, match=message):
        load(f"x={path}", None, 0, {})


def test_wrong_names(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="No such file"):
        load(f"x={tmp_path / 'none.jsonl'}", None, 0, {})
    with pytest.raises(BenchError, match="write NAME=PATH, or one of problems, gsm8k"):
        load("gsm9k", None, 0, {})
    with pytest.raises(BenchError, match=r"'Q' has no \{prompt\}"):
        load(f"x={jsonl(tmp_path / 'a.jsonl', {'prompt': 'a'})}", None, 0, {"x": "Q"})


def test_problems_are_the_demo_generator_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From any folder, the same for the same seed, and none that the demo was trained on."""
    from plugin.training.data.problems.generate import take

    monkeypatch.chdir(tmp_path)
    made = load("problems", 5, 3, {})
    assert made.prompts == tuple(problem.question for problem in take(3, "fresh", 5))
    assert made.sha256 != load("problems", 5, 4, {}).sha256


def test_hub_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each set is asked for by its name, configuration and split."""
    asked: list[Any] = []

    def load_dataset(name: str, config: str | None, split: str, revision: None) -> list[dict[str, Any]]:
        asked.append((name, config, split))
        return [{"question": "q", "prompt": ["p1", "p2"]}]

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert load("gsm8k", None, 0, {}).prompts == ("q",)
    made = load("mtbench", None, 0, {})
    assert made.prompts == ("p1", "p2") and made.source == "HuggingFaceH4/mt_bench_prompts train"
    assert asked[0] == ("openai/gsm8k", "main", "test")

    def offline(name: str, config: str | None, split: str, revision: None) -> None:
        raise ConnectionError("no network")

    module.load_dataset = offline  # type: ignore[attr-defined]
    with pytest.raises(BenchError, match="openai/gsm8k cannot be loaded: ConnectionError: no network"):
        load("gsm8k", None, 0, {})
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BenchError, match=r"gsm8k: needs the package datasets: .*\[bench\]"):
        load("gsm8k", None, 0, {})


def first_words(text: str, tokens: int) -> str:
    return " ".join(text.split(" ")[:tokens])


def test_published_wordings(tmp_path: Path) -> None:
    """The six sets as the published drafts were measured on them."""
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    talk += [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": "No."}]
    row = {"question": "q", "prompt": "p", "problem": "m", "text": "t", "messages": talk}
    path = jsonl(tmp_path / "a.jsonl", row)
    wanted = {
        "gsm8k": "Solve the problem step by step.\n\nQuestion: q\nAnswer:",
        "humaneval": "p",
        "math500": "Solve the problem step by step.\n\nProblem: m\nAnswer:",
        "mbpp": "Write a Python solution for the following task.\n\nt\n\n```python\n",
        "mtbench": "p",
        "ultrachat": "User: Hi\nAssistant: Yes?\nUser: Go on\nAssistant:",
    }
    assert list(wanted) == list(SETS)
    for name, prompt in wanted.items():
        made = published(f"{name}={path}", None, first_words)
        assert made.prompts == (prompt,) and made.template == SETS[name].template
    with pytest.raises(BenchError, match="--published --data mine: the published sets are gsm8k, humaneval,"):
        published(f"mine={path}", None, first_words)


def test_published_sizes_and_cuts(tmp_path: Path) -> None:
    """5000 conversations, cut to what 128 output tokens leave of 2048; all of any other set."""
    turns = [{"role": "user", "content": "a " * 3000}, {"role": "assistant", "content": "b"}]
    path = jsonl(tmp_path / "a.jsonl", *[{"messages": turns}] * 5001)
    made = published(f"ultrachat={path}", None, first_words)
    assert len(made.prompts) == 5000 and len(made.prompts[0].split(" ")) == 1920
    assert len(published(f"ultrachat={path}", 3, first_words).prompts) == 3
    many = jsonl(tmp_path / "b.jsonl", *[{"question": "q"}] * 5001)
    assert len(published(f"gsm8k={many}", None, first_words).prompts) == 5001
    alone = jsonl(tmp_path / "c.jsonl", {"messages": turns[:1]})
    with pytest.raises(BenchError, match=r"c.jsonl:1: no response"):
        published(f"ultrachat={alone}", None, first_words)
