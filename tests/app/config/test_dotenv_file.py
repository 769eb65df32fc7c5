"""`.env`: what cannot be read is refused in one line that names file and line, never passed over (N12)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.config.environment import load_settings
from app.config.settings import SettingsError
from tests.app.test_main import uvicorn


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No T5GEMMA_* variable, and a folder of its own."""
    for name in [name for name in os.environ if name.upper().startswith("T5GEMMA_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def refusal(content: bytes) -> str:
    Path(".env").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    message = str(caught.value)
    assert "\n" not in message and message.isprintable()
    return message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"T5GEMMA_K: 8", "not NAME=value: T5GEMMA_K"),
        (b"T5GEMMA_K 8", "not NAME=value: T5GEMMA_K"),
        (b"T5GEMMA_K", "not NAME=value: T5GEMMA_K"),
        (b"- T5GEMMA_K=8", "not NAME=value: T5GEMMA_K"),
        (b"export T5GEMMA_K", "not NAME=value"),
        (b'T5GEMMA_DRAFT="unclosed', "not NAME=value: T5GEMMA_DRAFT"),
        (b"T5GEMA_K=8", "T5GEMA_K is not a setting: did you mean T5GEMMA_K?"),
        (b"T5_GEMMA_MODEL=x", "did you mean T5GEMMA_MODEL?"),
        (b"T5GEMMA2_MODEL=x", "did you mean T5GEMMA_MODEL?"),
        (b"t5gema_max_num_seqs=1", "did you mean T5GEMMA_MAX_NUM_SEQS?"),
        (b"T5GEMMA_DRAF=x", "did you mean T5GEMMA_DRAFT?"),
        (b"T5GEMMA_K=8\0", "a NUL character"),
        (b"T5GEMMA_DRAFT=\xfcber", "not UTF-8"),
        (b'T5GEMMA_DRAFT="a\\nb"', "control characters"),
        (b"T5GEMMA_K=x", "T5GEMMA_K='x'"),
        (b"t5gemma_k=x", "T5GEMMA_K='x'"),
    ],
)
@pytest.mark.parametrize("before", [b"", b"# a comment\r\n\r\n", b"\n\nOTHER=1\n\n"])
def test_a_line_that_cannot_be_read(line: bytes, words: str, before: bytes) -> None:
    message = refusal(before + line + b"\nT5GEMMA_SEED=3\n")
    number = before.count(b"\n") + 1
    assert message.startswith(f".env, line {number}: ") and words in message


def test_a_file_of_another_encoding() -> None:
    """As PowerShell's `>` writes it: UTF-16."""
    assert refusal("T5GEMMA_K=8\n".encode("utf-16")).startswith(".env, line 1: not UTF-8")


def test_no_key_is_shown() -> None:
    for line in ("T5GEMMA_API_KEYS: sk-secret", "T5GEMMA_API_KEYS sk-secret", "T5GEMMA_API_KEY=sk-secret"):
        assert "secret" not in refusal(line.encode())


def test_byte_order_mark() -> None:
    """An editor's mark before the first name is no part of it."""
    Path(".env").write_bytes("\ufeffT5GEMMA_K=3\n".encode())
    assert load_settings().k == 3


def test_what_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments, `export`, quotes, an empty value, and names of others, also with empty values."""
    Path(".env").write_text(
        "# T5GEMMA_K: 8\n\nexport T5GEMMA_K=3 # three\nT5GEMMA_DRAFT='a b'\nT5GEMMA_SEED=\n"
        "HF_TOKEN=x\nEMPTY=\nMODEL=y\nGEMMA_MODEL=z\nT5_HOME=/t5\nTEMPLATE=a\n"
    )
    settings = load_settings()
    assert (settings.k, settings.draft, settings.seed) == (3, "a b", 0)


def test_no_file_and_a_folder_of_that_name() -> None:
    """`python -m venv .env` is a habit of many."""
    assert load_settings().k is None
    Path(".env").mkdir()
    assert load_settings().k is None


def test_a_file_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("T5GEMMA_K=3\n")

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(SettingsError, match=r"^\.env: Permission denied$"):
        load_settings()


def test_the_last_of_two_lines_counts() -> None:
    Path(".env").write_text("T5GEMMA_K=1\nT5GEMMA_K=2\n")
    assert load_settings().k == 2


def test_one_setting_under_two_spellings() -> None:
    """Letter case does not matter, so these are one setting with two values."""
    assert "T5GEMMA_K and t5gemma_k are the same setting" in refusal(b"T5GEMMA_K=1\nt5gemma_k=2\n")


def test_the_server_ends_with_that_line(tmp_path: Path) -> None:
    Path(".env").write_bytes(b"OTHER=1\nT5GEMMA_K: 8\n")
    ended = uvicorn(tmp_path)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert ended.stderr.strip().splitlines()[-1].startswith("t5gemma2: .env, line 2: ")
