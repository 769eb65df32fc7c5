"""Places and mixture profiles: what they mean, and what is wrong with them in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugin.training.data.conversations import plain_text
from plugin.training.data.pairs import Columns, DataError
from plugin.training.data.profiles import MIXTURES, read_profile, sources_of
from plugin.training.data.sources import Source

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]


def test_short_forms(tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text("")
    assert sources_of(str(mine)) == [Source("mine.jsonl", jsonl=mine)]
    assert sources_of("demo:60000") == [Source("demo", 60000, demo=True)]
    assert sources_of("hf:a/b") == [Source("a/b", dataset="a/b")]
    assert sources_of("hf:a/b:test") == [Source("a/b", dataset="a/b", split="test")]
    assert sources_of("hf:a/b:main:test") == [Source("a/b", dataset="a/b", config="main", split="test")]


def test_the_published_mixture() -> None:
    sources = {source.name: source for source in sources_of("t5gemma2_200k")}
    assert {name: source.count for name, source in sources.items()} == {
        "ultrachat": 60_000,
        "sharegpt": 20_000,
        "magicoder": 50_000,
        "xlam": 40_000,
        "glaive": 20_000,
        "mathinstruct": 10_000,
    }
    assert sum(source.count or 0 for source in sources.values()) == 200_000
    assert sources_of("t5gemma2_200k:glaive") == [sources["glaive"]]
    assert sources_of(f"{MIXTURES / 't5gemma2_200k.toml'}:glaive") == [sources["glaive"]]


@pytest.mark.parametrize(
    ("name", "row", "prompt", "response"),
    [
        (
            "ultrachat",
            {"prompt": "Hi", "prompt_id": "1", "messages": MESSAGES},
            "User: Hi\nAssistant:",
            "Yes.",
        ),
        (
            "sharegpt",
            {"id": "1", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes."}]},
            "User: Hi\nAssistant:",
            "Yes.",
        ),
        ("magicoder", {"instruction": "Sort.", "response": "sorted(x)"}, "Sort.", "sorted(x)"),
        (
            "xlam",
            {"id": 0, "query": "Weather?", "tools": '[{"name": "w"}]', "answers": '[{"name": "w", "arguments": {}}]'},
            'Tools:\n[{"name": "w"}]\n\nQuery:\nWeather?',
            '[{"name": "w", "arguments": {}}]',
        ),
        (
            "glaive",
            {"system": "SYSTEM: Brief.", "chat": "USER: Hi\n\n\nASSISTANT: Yes. <|endoftext|>\n\n\n"},
            "System: Brief.\nUser: Hi\nAssistant:",
            "Yes.",
        ),
        ("mathinstruct", {"source": "s", "instruction": "1+1?", "output": "2"}, "1+1?", "2"),
    ],
)  # fmt: skip
def test_the_published_mixture_reads_its_datasets_columns(
    name: str, row: dict[str, object], prompt: str, response: str
) -> None:
    (source,) = sources_of(f"t5gemma2_200k:{name}")
    texts = source.columns.texts(row, plain_text)
    assert texts is not None and texts[0].endswith(prompt) and texts[1] == response


def test_a_profile_has_every_kind_of_source(tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_text(
        '[[source]]\nname = "a"\njsonl = "sub/a.jsonl"\nturn = "first"\n'
        '[[source]]\nname = "b"\ncount = 5\ndemo = true\n'
        '[[source]]\nname = "c"\ndataset = "x/y"\nconfig = "main"\nrevision = "abc"\nmessages = "talk"\n'
    )
    assert sources_of(str(tmp_path / "mix.toml")) == [
        Source("a", jsonl=tmp_path / "sub" / "a.jsonl", columns=Columns(turn="first")),
        Source("b", 5, demo=True),
        Source("c", dataset="x/y", config="main", revision="abc", columns=Columns(messages="talk")),
    ]


@pytest.mark.parametrize(
    ("source_spec", "message"),
    [
        ("nowhere.jsonl", r"nowhere.jsonl: no such file, .*known: .*t5gemma2_200k"),
        ("nowhere.toml", "nowhere.toml: .*No such file"),
        ("demo", "demo: write demo:N"),
        ("demo:many", "demo:many: write demo:N"),
        ("demo:0", "demo: count 0 is below 1"),
        ("hf:", "hf:: write hf:DATASET"),
        ("hf:a/b:", "hf:a/b:: write hf:DATASET"),
        ("t5gemma2_200k:chat", "t5gemma2_200k:chat: .* has the sources ultrachat, sharegpt"),
    ],
)
def test_source_specs_that_mean_nothing(source_spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        sources_of(source_spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "mix.toml: Invalid value"),
        ("", r"mix.toml: a profile is a list of \[\[source\]\]$"),
        ('seed = 1\n[[source]]\nname = "a"\ndataset = "x/y"', "not seed"),
        ('[[source]]\ndataset = "x/y"', "source 0: has no name"),
        ('[[source]]\nname = "a"\nsets = "x/y"', "source a: sets is none of name, count"),
        ('[[source]]\nname = "a"\ndataset = "x/y"\ncount = "5"', "source a: count must be int, is str"),
        ('[[source]]\nname = "a"\ndataset = "x/y"\ncount = true', "source a: count must be int, is bool"),
        ('[[source]]\nname = "a"', "source a: a: give one of jsonl"),
        ('[[source]]\nname = "a"\ndataset = "x/y"\nresponse = "{a}"', "source a: columns: give prompt and response"),
        ('[[source]]\nname = "a"\ndataset = "x"\n[[source]]\nname = "a"\ndataset = "y"', "two sources are called a"),
    ],
)  # fmt: skip
def test_bad_profiles_name_source_and_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mix.toml").write_text(text)
    with pytest.raises(DataError, match=message):
        read_profile(tmp_path / "mix.toml")
