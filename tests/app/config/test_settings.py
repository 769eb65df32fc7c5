"""Settings from the environment: defaults, empties, lists, one-line refusals, secrets that stay secret."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import app
from app.config.environment import load_settings
from app.config.lengths import lengths
from app.config.settings import Settings, SettingsError, variable


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No T5GEMMA_* variable and no .env of the machine that runs the test."""
    for name in [name for name in os.environ if name.upper().startswith("T5GEMMA_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def refusal(monkeypatch: pytest.MonkeyPatch, field: str, value: str) -> str:
    monkeypatch.setenv(variable(field), value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    message = str(caught.value)
    assert "\n" not in message and variable(field) in message
    return message


def test_defaults() -> None:
    settings = load_settings()
    assert (settings.model, settings.draft, settings.verifier, settings.k) == (None, None, None, None)
    assert (settings.max_num_seqs, settings.max_queued_requests, settings.max_body_bytes) == (
        4,
        256,
        8 * 2**20,
    )
    assert (settings.request_timeout_s, settings.shutdown_grace_s, settings.stats_window_s) == (600, 30, 60)
    assert (settings.api_keys, settings.cors_origins, settings.served_model_name) == ((), (), ())
    assert (settings.dtype, settings.enforce_eager, settings.log_prompts) == ("auto", None, False)


@pytest.mark.parametrize(
    "field", ["k", "draft", "max_model_len", "api_keys", "enforce_eager", "checkpoints_dir"]
)
def test_set_but_empty_is_unset(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """An empty variable is no variable; in a .env file too (D19)."""
    monkeypatch.setenv(variable(field), "")
    assert load_settings() == Settings()
    monkeypatch.delenv(variable(field))
    Path(".env").write_text(f"{variable(field)}=\n")
    assert load_settings() == Settings()


def test_blank_is_not_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of blanks is no variable (D19)."""
    monkeypatch.setenv("T5GEMMA_DRAFT", "  ")
    assert load_settings().draft is None


def test_keys_that_are_only_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable meant to close the API must not leave it open, nor accept an empty bearer (D19)."""
    assert "names no key" in refusal(monkeypatch, "api_keys", " , ")


def test_comma_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two served names; blanks around commas do not count (D21)."""
    monkeypatch.setenv("T5GEMMA_SERVED_MODEL_NAME", "a, b,")
    monkeypatch.setenv("T5GEMMA_CORS_ORIGINS", "http://ui.local,https://x.example:8443")
    monkeypatch.setenv("T5GEMMA_API_KEYS", "one,two")
    settings = load_settings()
    assert settings.served_model_name == ("a", "b")
    assert settings.cors_origins == ("http://ui.local", "https://x.example:8443")
    assert [key.get_secret_value() for key in settings.api_keys] == ["one", "two"]


def test_keys_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5GEMMA_API_KEYS", "sk-one,sk-two")
    settings = load_settings()
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump(mode='json')}"
    assert "sk-" not in shown
    monkeypatch.setenv("T5GEMMA_K", "zero")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("value", ["-0.1", "1.1", "nan", "90%", "0", "inf"])
def test_shares(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Name, value and range; 0 is refused, 1 is allowed (D24)."""
    message = refusal(monkeypatch, "gpu_memory_utilization", value)
    assert repr(value) in message and "range: above 0 and at most 1" in message


def test_share_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upper end is allowed (D24)."""
    monkeypatch.setenv("T5GEMMA_GPU_MEMORY_UTILIZATION", "1")
    assert load_settings().gpu_memory_utilization == 1


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("k", "0", "whole number from 1, or auto"),
        ("k", "7.5", "whole number from 1, or auto"),
        ("max_model_len", "0", "range: at least 2"),
        ("max_num_seqs", "many", "valid integer"),
        ("request_timeout_s", "nan", "finite"),
        ("stats_window_s", "0", "range: above 0"),
        ("dtype", "float16", "overflow float16"),
        ("dtype", "int8", "'auto', 'bfloat16' or 'float32'"),
        ("enable_prefix_caching", "true", "cannot be shared between prompts"),
        ("log_format", "xml", "'text' or 'json'"),
        ("root_path", "t5", "must start with /"),
        ("cors_origins", "ui.local", "no origin"),
        ("cors_origins", "http://ui.local/", "no origin"),
        ("checkpoints_dir", "/does/not/exist", "is not a folder"),
    ],
)
def test_refused_values(monkeypatch: pytest.MonkeyPatch, field: str, value: str, words: str) -> None:
    message = refusal(monkeypatch, field, value)
    assert words in message and value in message


def test_value_from_a_file_is_named_too() -> None:
    Path(".env").write_text("T5GEMMA_K=x\n")
    with pytest.raises(SettingsError, match="T5GEMMA_K='x'"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("T5GEMMA_DRAF", "did you mean T5GEMMA_DRAFT?"),
        ("T5GEMMA_MAX_MODEL_LENGTH", "did you mean T5GEMMA_MAX_MODEL_LEN?"),
        ("t5gemma_verifyer", "did you mean T5GEMMA_VERIFIER?"),
        ("T5GEMMA_PORT", "use uvicorn's --port"),
        ("T5GEMMA_HOST", "use uvicorn's --host"),
        ("T5GEMMA_ZZZZZZZZ", "`t5gemma2 serve --help` names them all"),
    ],
)
def test_unknown_names(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    """A misspelt variable is refused, in the environment and in .env, with the nearest name."""
    monkeypatch.setenv(name, "x")
    with pytest.raises(SettingsError, match=f"{name} is not a setting") as caught:
        load_settings()
    assert hint in str(caught.value)
    monkeypatch.delenv(name)
    Path(".env").write_text(f"{name}=x\nOTHER=y\n")
    with pytest.raises(SettingsError, match=f"{name} is not a setting"):
        load_settings()


@pytest.mark.parametrize("line", ["{}", "'{}'", '"{}"'])
def test_dotenv_quoting(line: str) -> None:
    """Spaces, umlauts and brackets, with and without quotes; foreign names do not matter (D13)."""
    place = "/tmp/my drafts/über (1)/dflash"
    Path(".env").write_text(f"HTTP_PROXY=x\nT5GEMMA_DRAFT={line.format(place)}\n", encoding="utf-8")
    assert load_settings().draft == place


def test_environment_wins_over_file_and_override_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("T5GEMMA_K=1\nT5GEMMA_SEED=5\n")
    monkeypatch.setenv("T5GEMMA_K", "2")
    settings = load_settings()
    assert (settings.k, settings.seed) == (2, 5)
    assert load_settings(k=3).k == 3


def test_length_limits() -> None:
    """Defaults are capped by the verifier and by a sane size; more than the verifier has is refused."""
    settings = Settings()
    assert (lengths(settings, 512), lengths(settings, 32768)) == ((512, 512), (4096, 4096))
    assert lengths(Settings(max_model_len=100), 512) == (100, 100)
    assert lengths(Settings(max_model_len=100, max_encoder_len=200), 512) == (100, 200)
    with pytest.raises(SettingsError, match=r"T5GEMMA_MAX_MODEL_LEN=600 .* max_position_embeddings 512"):
        lengths(Settings(max_model_len=600), 512)
    with pytest.raises(SettingsError, match="T5GEMMA_MAX_ENCODER_LEN=600"):
        lengths(Settings(max_encoder_len=600), 512)


def test_every_setting_is_explained() -> None:
    for field, info in Settings.model_fields.items():
        assert info.description and info.description.rstrip().endswith((".", "`")), field


def test_every_setting_does_something() -> None:
    """Each field is read somewhere in the package; prefix caching exists only to be refused."""
    sources = [path.read_text(encoding="utf-8") for path in Path(app.__file__).parent.rglob("*.py")]
    for field in Settings.model_fields.keys() - {"enable_prefix_caching"}:
        assert any(re.search(rf"\.{field}\b", source) for source in sources), field


def test_k_is_a_number_or_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in (("3", 3), ("auto", "auto"), ("AUTO", "auto"), ("", None)):
        monkeypatch.setenv("T5GEMMA_K", text)
        assert load_settings(None).k == value
    monkeypatch.setenv("T5GEMMA_K", "auto")
    monkeypatch.setenv("T5GEMMA_SHORT_BLOCK", "true")
    with pytest.raises(SettingsError, match="T5GEMMA_K=auto needs the whole block"):
        load_settings(None)
    monkeypatch.delenv("T5GEMMA_SHORT_BLOCK")
    monkeypatch.setenv("T5GEMMA_K_FLOOR", "3")
    monkeypatch.setenv("T5GEMMA_K_CEILING", "2")
    with pytest.raises(SettingsError, match="T5GEMMA_K_CEILING='2': is below T5GEMMA_K_FLOOR=3"):
        load_settings(None)
