"""`t5gemma2 train` from the command line: one line for what is wrong, and a run that goes on by the same command."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from app.cli import _parser, main
from plugin.drafts import checkpoint
from plugin.training import run_data
from plugin.training.data.problems.generate import take
from plugin.training.data.responses.answered import Answers
from plugin.training.entry import _settings, guarded
from plugin.training.run.folder import RunFolder
from plugin.training.run.stop import Interrupted
from plugin.training.run.trainer import NotFinite
from plugin.training.settings import DraftSettings
from plugin.training.verifier.frozen_verifier import FrozenVerifier
from plugin.training.verifier.greedy import greedy_responses

DEMO = Path(__file__).parents[3] / "plugin" / "demo"
SMALL = [
    "--total-length", "128", "--response-length", "96", "--anchors", "8", "--rows", "4", "--layers", "1",
    "--draft-vocab", "256", "--no-tensorboard", "--device", "cpu",
]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    rows = [{"prompt": problem.question, "response": problem.answer} for problem in take(5, "train", 12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def command(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`command(family, *options)`: exit code and standard error of a run in `run` on the demo verifier."""

    def go(
        family: str, *options: str, out: str = "run", verifier: str = str(DEMO / "verifier")
    ) -> tuple[int, str]:
        words = ["train", family, "--verifier", verifier, "--data", str(data), "--out", str(tmp_path / out)]
        with pytest.raises(SystemExit) as ended:
            main([*words, *SMALL, *options])
        return int(ended.value.code or 0), capsys.readouterr().err

    return go


def test_a_draft_is_trained_gone_on_with_and_served(
    command: Callable[..., tuple[int, str]], tmp_path: Path, data: Path
) -> None:
    code, _ = command("dflare", "--epochs", "1")
    assert code == 0
    best = tmp_path / "run" / "checkpoint_best"
    found = checkpoint.fetch(checkpoint.resolve(model=str(best), draft=None, verifier=None, k=None))
    assert found.draft is not None and (found.draft.family, found.k) == ("dflare", 7)
    assert found.draft.aux_layer_ids == (0, 1, 2, 3, 4, 5)
    assert found.verifier.path == str(DEMO / "verifier")
    counts = json.loads((best / "training" / "data_config.json").read_text())
    assert (counts["pairs"], counts["training_samples"], counts["validation_samples"]) == (12, 11, 1)
    text = (best / "train_command.txt").read_text()
    assert (
        text.startswith("t5gemma2 train dflare --verifier ")
        and "\nseed: 42\n" in text
        and "\ntorch: " in text
    )

    assert command("dflare", "--epochs", "1")[0] == 0
    assert command("dflare", "--epochs", "2")[0] == 0
    assert json.loads((tmp_path / "run/1/training_state.json").read_text())["epoch"] == 1

    refusals = {
        ("--seed", "43"): "seed: 43 here, 42 in ",
        ("--rows", "2"): "rows: 2 here, 4 in ",
        ("--epochs", "1"): "epochs: 1 here, 2 in ",
        ("--layers", "2"): "--layers: 2 here, 1 in ",
        ("--fresh",): "--fresh: ",
    }
    for options, words in refusals.items():
        code, said = command("dflare", "--epochs", "3", *options)
        assert code == 1 and said.splitlines()[-1].startswith(f"t5gemma2: {words}"), said
    code, said = command("dspark", "--epochs", "3")
    assert code == 1 and "speculators_model_type is 'dflare', asked for is 'dspark'" in said
    data.write_text(
        data.read_text().replace("miles", "meters", 1).replace("apples", "pens", 1) + data.read_text()
    )
    code, said = command("dflare", "--epochs", "3")
    assert code == 1 and said.splitlines()[-1].startswith("t5gemma2: data: "), said


def by_transformers(
    arguments: argparse.Namespace, settings: DraftSettings, verifier: FrozenVerifier, folder: RunFolder
) -> Answers:
    """Takes the place of vLLM, whose start takes a while; `tests/engine/test_responses.py` has it."""

    def answers(prompts: Sequence[list[int]], length: int) -> Iterator[tuple[int, list[int]]]:
        yield from enumerate(greedy_responses(verifier.model, prompts, length, 32))

    return answers


def test_the_verifiers_own_answers_are_made_once(
    command: Callable[..., tuple[int, str]], tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts alone suffice (N36); the answers are kept with hashes, and another draft is trained on the same file."""
    monkeypatch.setattr(run_data, "answers", by_transformers)
    data.write_text(
        "".join(json.dumps({"prompt": problem.question}) + "\n" for problem in take(5, "train", 12))
    )
    options = ("--epochs", "1", "--responses", "verifier", "--max-new-tokens", "8")
    assert command("dflash", *options)[0] == 0
    file = tmp_path / "run" / "responses.jsonl"
    header, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert header["max_new_tokens"] == 8 and len(lines) == 12
    assert all(1 <= len(line["response"]) <= 8 for line in lines)
    config = json.loads((tmp_path / "run/0/training/data_config.json").read_text())
    assert (config["responses"], config["answers"]["verifier"]) == ("verifier", header["verifier"])
    assert config["cut"] == {"prompts": 0, "responses": 12, "side": "end"}
    before = file.read_bytes()
    file.write_bytes(before[:-7])
    assert command("dflash", *options)[0] == 0
    assert file.read_bytes() == before
    code, said = command("dflash", *options[:-1], "9")
    assert code == 1 and "responses.jsonl: holds responses of another verifier or of another length" in said

    def never(*_: object) -> Answers:
        def answers(prompts: Sequence[list[int]], length: int) -> Iterator[tuple[int, list[int]]]:
            raise AssertionError("asked again")

        return answers

    monkeypatch.setattr(run_data, "answers", never)
    assert command("dflare", *options, "--responses-file", str(file), out="second")[0] == 0
    assert not (tmp_path / "second" / "responses.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate", "-1"), "peak_rate: -1.0 is not a finite number above 0"),
        (("--seed", "-1"), "seed: -1 is below 0"),
        (("--device", "gpu"), "--device gpu: Expected one of cpu, cuda"),
        (("--block-size", "1"), "block_size: 1 leaves no slot to predict"),
        (("--total-length", "96"), "total_length: 96 does not hold"),
        (("--aux-layers", "3,9"), "aux layers: [3, 9] are not ascending layers of 0 ... 5"),
        (("--from", "nowhere"), "nowhere/config.json: no such file"),
        (("--data", "missing.jsonl"), "missing.jsonl"),
    ],
)
def test_what_is_wrong_is_one_line(
    command: Callable[..., tuple[int, str]], options: tuple[str, ...], words: str
) -> None:
    code, said = command("dflash", *options)
    last = said.splitlines()[-1]
    assert code == 1 and last.startswith("t5gemma2: ") and words in last, said
    assert "Traceback" not in said


def test_the_verifier_is_checked_first(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    for verifier, words in (("./nowhere", "does not exist"), (str(DEMO / "dflash"), "is a draft")):
        code, said = command("dflash", verifier=verifier)
        assert code == 1 and said.startswith("t5gemma2: ") and words in said and len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_data_are_read_before_the_verifier_is_loaded(
    command: Callable[..., tuple[int, str]], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(FrozenVerifier, "load", never)
    data.write_text('{"prompt": "a"}\n')
    code, said = command("dflash")
    assert code == 1 and said.splitlines()[-1].startswith("t5gemma2: mine.jsonl:1: response: no such field")


def test_what_needs_no_answers_is_checked_before_they_are_made(
    command: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier's answers can take hours; the negative control is a run in which nothing is wrong."""

    class Made(Exception):
        pass

    def made(*_: object, **__: object) -> None:
        raise Made

    assert command("dflash", "--epochs", "1")[0] == 0
    monkeypatch.setattr(run_data, "verifier_responses", made)
    for out, options, words in (
        ("new", ("--aux-layers", "3,9"), "aux layers: [3, 9]"),
        ("new", ("--draft-vocab", "999"), "draft_vocab_size: 999"),
        ("new", ("--from", "nowhere"), "nowhere/config.json: no such file"),
        ("run", ("--rows", "2"), "rows: 2 here, 4 in "),
        ("run", (), "responses: 'verifier' here, 'data' in "),
    ):
        code, said = command("dflash", "--responses", "verifier", *options, out=out)
        assert code == 1 and words in said.splitlines()[-1], said
    with pytest.raises(Made):
        command("dflash", "--responses", "verifier", out="new")


def test_no_usable_sample_is_an_error_f16(command: Callable[..., tuple[int, str]], data: Path) -> None:
    """Rows without room for an anchor, and no rows (F16)."""
    data.write_text('{"prompt": "a", "response": "b c"}\n' * 3)
    code, said = command("dflash", "--whole-blocks")
    assert code == 1 and said.splitlines()[-1] == (
        "t5gemma2: no training sample has a response of 8 tokens, so there is nothing to predict"
    )
    assert command("dflash", "--epochs", "1")[0] == 0
    data.write_text("")
    code, said = command("dflash")
    assert code == 1 and said.splitlines()[-1] == "t5gemma2: mine.jsonl: 0 usable of 0 rows"


@pytest.mark.parametrize(
    "words",
    [
        ["train"],
        ["train", "eagle"],
        ["train", "dflash", "--data", "a.jsonl", "--out", "run"],
        ["train", "dflash", "--verifier", "v", "--data", "a", "--out", "run", "--rows", "many"],
        ["train", "demo", "--out", "d", "--only", "eagle"],
        ["train", "dflash", "--verifier", "v", "--data", "a", "--out", "run", "--responses", "mine"],
    ],
)
def test_wrong_usage_is_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_exit_codes_f10(capsys: pytest.CaptureFixture[str]) -> None:
    """Not finite is 1 and one line; stopped by a signal is 130 (F10)."""

    def stopped(_: argparse.Namespace) -> None:
        raise Interrupted("stopped after step 3 and saved run/0.3")

    def broken(_: argparse.Namespace) -> None:
        raise KeyboardInterrupt

    def wrong(_: argparse.Namespace) -> None:
        raise NotFinite("step 3: the loss not finite; samples a, b")

    assert guarded(stopped, argparse.Namespace()) == 130
    assert guarded(broken, argparse.Namespace()) == 130
    assert guarded(wrong, argparse.Namespace()) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[2] == "t5gemma2: step 3: the loss not finite; samples a, b"
    assert said[0] == "t5gemma2: stopped after step 3 and saved run/0.3"


def test_a_copied_run_goes_on_f09(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """The run folder under another name is the same run (F09)."""
    assert command("dflash", "--epochs", "1")[0] == 0
    os.rename(tmp_path / "run", tmp_path / "copy")
    assert command("dflash", "--epochs", "2", out="copy")[0] == 0
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["0", "1", "checkpoint_best"]


def test_the_flags_defaults_are_the_settings() -> None:
    """All of them, precision on CUDA included."""
    words = ["train", "dflash", "--verifier", "v", "--data", "d", "--out", "o"]
    arguments = _parser().parse_args(words)
    assert _settings(arguments, torch.device("cuda")) == DraftSettings()
