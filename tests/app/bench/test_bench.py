"""`t5gemma2 bench` from the command line to the files, against scripted servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.bench.arms import Arm, own_arms
from app.bench.cell import Cell
from app.bench.client import Sampling
from app.bench.prompts import PLACEHOLDER, PromptSet
from tests.app.bench.commands import report_of, run, served_arms
from tests.app.bench.scripted import Script, running

BENCH = (
    "bench",
    "--draft",
    "d=dflash",
    "--data",
    "mine=p.jsonl",
    "--concurrency",
    "1",
    "--warmup",
    "1",
    "--out",
    "out",
)


def test_bench_sweeps_k(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over HTTP: the base's row, and one row for each K with rate, length and positions (F06)."""
    assert run(*BENCH, "--arms", "verifier,d:1,d:3,d:7") == 0
    made = report_of(pair / "out")
    assert not made["partial"] and [row["arm"] for row in made["rows"]] == ["verifier", "d:1", "d:3", "d:7"]
    for row, k in zip(made["rows"], (None, 1, 3, 7), strict=True):
        assert (row["k"], row["completed"], row["output_tokens"]) == (k, 6, 72)
        assert (row["acceptance"] is None) == (k is None)
    seven = made["rows"][3]
    assert seven["acceptance"]["mean_acceptance_length"] == 4.0
    assert [position["rate"] for position in seven["acceptance"]["per_position"]] == [1, 1, 1, 0, 0, 0, 0]
    assert seven["equality"] == {"by": "token_ids", "compared": 6, "equal": 6, "first_difference": None}
    base = made["rows"][0]
    assert seven["speedup"] == pytest.approx(base["seconds"] / seven["seconds"])
    assert base["seconds"] > 6 * 12 * 0.004 and seven["seconds"] > 6 * 3 * 0.004
    files = {file.name for file in (pair / "out").iterdir()}
    assert files >= {
        "report.json",
        "report.md",
        "speedup.png",
        "speedup.svg",
        "acceptance.png",
        "acceptance.svg",
    }
    shown = capsys.readouterr().out
    assert "d:7" in shown and "6/6" in shown and str(pair) not in (pair / "out" / "report.md").read_text()


def test_bench_resumes(
    processes: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second run measures only what is missing; replaced weights or another protocol are missing."""
    command = (*BENCH, "--arms", "verifier,d:3", "--no-plots")
    assert run(*command) == 0
    first = report_of(processes / "out")
    monkeypatch.setenv("FAIL", "1")
    assert run(*command) == 0
    assert report_of(processes / "out")["rows"] == first["rows"]
    assert run(*command, "--max-tokens", "9") == 1
    assert "arm verifier: its server ended with 1: t5gemma2: no such weights" in capfd.readouterr().err
    assert run(*command, "--fresh") == 1
    os.utime(processes / "dflash" / "model.safetensors", (1, 1))
    assert run(*command) == 1
    assert "arm d:3: its server ended with 1" in capfd.readouterr().err


def test_a_server_that_dies_in_mid_cell(
    processes: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was measured is kept and marked, the end of the log is shown, and the next run measures the cell again
    (N33).
    """
    command = (*BENCH, "--arms", "verifier,d:3", "--no-plots")
    with monkeypatch.context() as dying:
        dying.setenv("DIE_AFTER", "5")  # one look, one warm-up, three measured
        assert run(*command) == 1
    shown = capfd.readouterr()
    assert "arm verifier: its server ended with 3: " in shown.err and "the engine is gone" in shown.err
    assert "(partial:" in shown.out
    part = json.loads((processes / "out" / "cells" / "verifier.mine.c1.json").read_text())
    assert (part["partial"], part["completed"], part["failures"]) == (True, 3, {"connection": 1})
    made = report_of(processes / "out")
    assert made["partial"] and made["missing"] == ["d_3.mine.c1"]
    assert "verifier (partial: 4 of 6)" in (processes / "out" / "report.md").read_text()
    assert run(*command) == 0
    assert [row["completed"] for row in report_of(processes / "out")["rows"]] == [6, 6]


def test_too_many_failures(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 above the share that is allowed; the cell is then measured again (N32)."""
    monkeypatch.setenv("REFUSE", "prompt xxxxx")
    command = (*BENCH, "--arms", "d:3", "--no-plots")
    assert run(*command, "--max-failed", "0.2") == 0
    started = served_arms(monkeypatch)
    assert run(*command) == 1 and started == ["d:3"]
    monkeypatch.delenv("REFUSE")
    assert run(*command) == 0 and started == ["d:3", "d:3"]
    assert run("bench", "--max-failed", "2") == 2


def test_bench_measures_given_servers(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server of known speed, 10 chunks of 2 tokens 10 ms apart, is found neither faster (a first chunk that comes
    late shortens what follows, hence the fifth) nor half as fast; `test_agreement` is exact.
    """
    script = Script(delays_s=lambda number: [0.01] * 10, tokens_per_chunk=2, k=3, accepted=1, family="dflare")
    with running(script) as url:
        assert run(*BENCH, "--url", f"dflare:3={url}", "--no-plots") == 0
    (row,) = report_of(pair / "out")["rows"]
    assert (row["family"], row["k"], row["chunks"], row["output_tokens"]) == ("dflare", 3, 60, 120)
    assert row["speedup"] is None and row["acceptance"]["drafts"] == 60
    assert 8 < row["itl_ms"]["p50"] < 20 and 72 / 19 < row["tpot_ms"]["p50"] < 180 / 19
    assert "No base arm" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--arms", "d:9"), "arm d:9: K=9 does not fit"),
        (("--arms", "d:3", "--base", "x"), "--base x is none of the arms d:3"),
        (("--arms", "d:3", "--data", "gsm9k"), "--data gsm9k: write NAME=PATH"),
        (("--arms", "d:3", "--template", "y={prompt}"), "--template y: no such --data"),
        (("--url", "x=http://127.0.0.1:9"), "http://127.0.0.1:9/v1/models: ConnectError"),
        (("--arms", "verifier", "--url", "verifier=http://a"), "--arms and --url name the same arm"),
        (("--url", "x=http://127.0.0.1:9", "--tokenizer", "none"), "--tokenizer none/tokenizer.json"),
    ],
)
def test_wrong_flags(
    pair: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    assert run(*BENCH, *flags) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("t5gemma2: ")]
    assert message in line


@pytest.mark.parametrize("argv", [("--concurrency", "0"), ("--concurrency", "1,x"), ("--warmup", "0")])
def test_wrong_usage(pair: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, str]) -> None:
    assert run("bench", *argv) == 2
    assert "is no whole number from 1" in capsys.readouterr().err


def test_interrupted_bench_keeps_what_it_has(pair: Path) -> None:
    """SIGTERM in the second arm: the first arm's cell stays, the second's is partial, no server is left."""
    code = (
        "from app.bench import servers; from app import cli; import sys;"
        "servers.APPLICATION='tests.app.bench.started:app'; cli.main(sys.argv[1:])"
    )
    environment = {**os.environ, "DRAFT_MS": "60", "FORK": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", code, *BENCH, "--arms", "verifier,d:1", "--no-plots"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=pair)
    log = pair / "out" / "logs" / "d_1.log"
    deadline = time.monotonic() + 30
    # A warm-up request and two measured ones, of 12 chunks each.
    while not (log.exists() and log.read_text().count("POST /v1/completions") >= 4):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "the same command goes on from here" in errors
    records = {file.name: json.loads(file.read_text()) for file in (pair / "out" / "cells").glob("*.json")}
    assert records["verifier.mine.c1.json"]["partial"] is False
    part = records["d_1.mine.c1.json"]
    assert part["partial"] is True and 1 <= part["completed"] < 6
    for name in ("verifier", "d_1"):
        child = int((pair / "out" / "logs" / f"{name}.log").read_text().split("child ")[1].split()[0])
        stat = Path(f"/proc/{child}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_key_holds_what_the_server_is_started_with(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another dtype, batch or version is another measurement; a key or a running server's is not."""
    (own,) = own_arms("verifier", {}, str(pair / "verifier"))
    prompts = PromptSet("made", "here", PLACEHOLDER, ("a",))

    def key(arm: Arm = own, batch: int = 1) -> str:
        return Cell(arm, prompts, 1, 1, Sampling(), batch).key

    other = Arm("x", url="http://server")
    first, elsewhere = key(), key(other)
    keys = {first, key(batch=4)}
    for name, value in (("DTYPE", "float32"), ("ENFORCE_EAGER", "true"), ("MAX_NUM_SEQS", "2")):
        with monkeypatch.context() as changed:
            changed.setenv(f"T5GEMMA_{name}", value)
            keys.add(key())
            assert key(other) == elsewhere
    assert len(keys) == 5
    for name, value in (("API_KEYS", "secret"), ("DTYPE", "")):
        monkeypatch.setenv(f"T5GEMMA_{name}", value)
    assert key() == first
    monkeypatch.setattr("app.bench.cell.versions", lambda: {"vllm": "1"})
    assert key() != first
