"""`t5gemma2 bench --json-schema`: what every request asks for, what the report says, which files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.bench import entry
from tests.app.bench.commands import report_of, run
from tests.app.bench.scripted import Script, running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"total": {"type": "number"}, "buyer": {"type": "string", "pattern": "^[A-Z]"}},
    "required": ["total", "buyer"],
}
BENCH = (
    "bench",
    "--data",
    "mine=p.jsonl",
    "--concurrency",
    "2",
    "--warmup",
    "1",
    "--out",
    "out",
    "--no-plots",
)


@pytest.fixture
def schema(pair: Path) -> Path:
    path = pair / "invoice.json"
    path.write_text(json.dumps(SCHEMA))
    return path


def test_every_request_asks_for_it(schema: Path) -> None:
    """Of all arms alike, with the properties in the file's order; the first look at a server is at a plain one."""
    alone, drafted = Script(finish_reason="stop"), Script(k=3, accepted=1, finish_reason="length")
    with running(alone) as one, running(drafted) as two:
        arms = ("--url", f"verifier={one}", "--url", f"dflash:3={two}")
        assert run(*BENCH, *arms, "--json-schema", str(schema)) == 0
    for script in (alone, drafted):
        look, *requests = script.bodies
        assert "response_format" not in look and len(requests) == 2 + 6
        for body in requests:
            form = body["response_format"]
            assert (form["type"], json.dumps(form["json_schema"]["schema"])) == (
                "json_schema",
                json.dumps(SCHEMA),
            )
    made = report_of(schema.parent / "out")
    assert [row["finish_reasons"] for row in made["rows"]] == [{"stop": 6}, {"length": 6}]
    assert made["rows"][1]["equality"]["equal"] == 6
    sha256 = made["protocol"]["json_schema_sha256"]
    shown = (schema.parent / "out" / "report.md").read_text()
    assert f"held to a JSON schema (sha256 `{sha256}`)" in shown
    assert "dflash:3, mine, concurrency 2: 6 of 6 answers were cut off by --max-tokens" in shown


def test_another_schema_is_another_measurement(schema: Path) -> None:
    """Without one, with it, and with its properties in another order, which is that of the answers."""
    turned = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}
    script, sent = Script(), []
    with running(script) as url:
        for content in (None, SCHEMA, turned):
            if content is not None:
                schema.write_text(json.dumps(content, indent=2))
            flags = () if content is None else ("--json-schema", str(schema))
            for _ in range(2):
                before = len(script.bodies)
                assert run(*BENCH, "--url", f"verifier={url}", *flags) == 0
                sent.append(len(script.bodies) - before)
    assert sent == [9, 0, 9, 0, 9, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "is no JSON: "),
        ("[1]", "is no JSON Schema: it has no keyword"),
        ('{"prompt": "What is the total?"}', "is no JSON Schema: it has no keyword"),
        ('{"type": "objekt"}', "is no JSON Schema: $.type: 'objekt' is not valid"),
        ('{"properties": {"a": {"pattern": "("}}}', "is no JSON Schema: $.properties.a.pattern: '('"),
    ],
)
def test_refused_files(
    pair: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = pair / "schema.json"
    if content is not None:
        path.write_text(content)
    assert run(*BENCH, "--json-schema", str(path)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"t5gemma2: --json-schema {path}: ") and message in line


@pytest.mark.parametrize("flag", ["--ignore-eos", "--published"])
def test_what_it_does_not_go_with(
    schema: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setattr(entry, "published_settings", lambda: None)  # it writes the process's environment
    assert run(*BENCH, "--arms", "verifier", "--json-schema", str(schema), flag) == 1
    assert "--json-schema" in capsys.readouterr().err


def test_a_server_that_refuses_it(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server's own words, in one line."""
    script = Script(refuse=lambda prompt: "no such grammar" if script.bodies else None)
    with running(script) as url:
        assert run(*BENCH, "--url", f"verifier={url}", "--json-schema", str(schema)) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("t5gemma2: http")]
    assert line.endswith("every warm-up request failed: 400: no such grammar")
