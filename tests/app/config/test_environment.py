"""The environment's names that only look like settings, and the variables of others that decide about us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.config import environment
from app.config.environment import load_settings, refuse_other_plugins, service_variables
from app.config.settings import Settings, SettingsError, variable
from tests.app.test_main import uvicorn
from tests.plugin.drafts.folders import write_pair

SERVICE = {
    "SERVICE_HOST": "10.96.13.7",
    "SERVICE_PORT": "80",
    "SERVICE_PORT_HTTP": "80",
    "PORT": "tcp://10.96.13.7:80",
    "PORT_80_TCP": "tcp://10.96.13.7:80",
    "PORT_80_TCP_PROTO": "tcp",
    "PORT_80_TCP_PORT": "80",
    "PORT_80_TCP_ADDR": "10.96.13.7",
    "PORT_53_UDP_ADDR": "fd00::7",
    "NAME": "/gateway/t5gemma",
    "ENV_MODEL": "of the other\ncontainer",
}
"""What Kubernetes injects into every container for a service, and Docker for a link, behind its name in capitals."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No T5GEMMA_* variable and no .env of the machine that runs the test."""
    for name in [name for name in os.environ if name.upper().startswith("T5GEMMA")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("service", ["T5GEMMA", "T5GEMMA_X", "T5GEMMA_MODEL", "T5GEMMA2", "T5GEMMA_2_B"])
def test_a_kubernetes_service_is_no_setting(monkeypatch: pytest.MonkeyPatch, service: str) -> None:
    """A service named `t5gemma` or `t5gemma-x` is described in names that begin as ours do (N13)."""
    for name, value in SERVICE.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    assert load_settings() == Settings()
    ours = {f"{service}_{name}" for name in SERVICE if service.startswith("T5GEMMA_") or service == "T5GEMMA"}
    assert set(service_variables()) == ours


@pytest.mark.parametrize("value", ["80", "10.0.0.1", "tcp://10.0.0.1:80", "tcp", "/a/b"])
def test_no_setting_looks_like_a_service(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for field in Settings.model_fields:
        monkeypatch.setenv(variable(field), value)
    assert service_variables() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("T5GEMMA_PORT", "8000"),
        ("T5GEMMA_SERVICE_HOST", "my.host"),
        ("T5GEMMA_SERVICE_PORT", "http"),
        ("t5gemma_port", "tcp://10.0.0.1:80"),
        ("T5GEMMA_PORTS", "tcp://10.0.0.1:80"),
        ("T5GEMMA_NAME", "my-model"),
        ("T5GEMMA_NAME", "/models/google/t5gemma"),
    ],
)
def test_what_only_nearly_looks_like_a_service(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name} is not a setting"):
        load_settings()


def test_a_service_is_told_in_one_line(tmp_path: Path) -> None:
    """The server starts and says once what it passes over (N13). Without its TLS key it ends before it would load."""
    write_pair(tmp_path)
    variables = {f"T5GEMMA_{name}": value for name, value in SERVICE.items()}
    ended = uvicorn(tmp_path, "--ssl-keyfile=x", T5GEMMA_MODEL=str(tmp_path / "dflash"), **variables)
    (line,) = [line for line in ended.stderr.splitlines() if "Kubernetes" in line]
    assert all(name in line for name in variables) and "ignored" in line
    assert "is not a setting" not in ended.stderr


@pytest.mark.parametrize("value", ["other", "", "t5gemma", "other, t5gemma2"])
def test_vllm_plugins_without_ours(tmp_path: Path, value: str) -> None:
    """vLLM would load no T5Gemma 2 and end in a traceback about an image processor (N14)."""
    write_pair(tmp_path)
    ended = uvicorn(tmp_path, T5GEMMA_MODEL=str(tmp_path / "dflash"), VLLM_PLUGINS=value)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"t5gemma2: VLLM_PLUGINS={value!r} ") and "t5gemma2" in last


@pytest.mark.parametrize("value", ["t5gemma2", "other,t5gemma2", None])
def test_vllm_plugins_with_ours(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv("VLLM_PLUGINS", value)
    refuse_other_plugins()


def test_a_project_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On PYTHONPATH alone it has no entry points, by which vLLM's processes find it (N14)."""
    monkeypatch.setattr(environment, "entry_points", lambda **asked: ())
    with pytest.raises(SettingsError, match="install this project"):
        refuse_other_plugins()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("T5GEMA_K", "K"),
        ("T5GMEMA_MODEL", "MODEL"),
        ("T5_GEMMA_DRAFT", "DRAFT"),
        ("T5GEMMAK", "K"),
        ("T5GEMMA2_MAX_MODEL_LEN", "MAX_MODEL_LEN"),
        ("T4GEMMA_API_KEYS", "API_KEYS"),
        ("t5gema_max_modl_len", "MAX_MODEL_LEN"),
    ],
)
def test_a_misspelt_prefix(monkeypatch: pytest.MonkeyPatch, name: str, meant: str) -> None:
    """In the environment as in `.env` (N12)."""
    monkeypatch.setenv(name, "3")
    with pytest.raises(SettingsError, match=rf"^{name} is not a setting: did you mean T5GEMMA_{meant}\?$"):
        load_settings()


@pytest.mark.parametrize(
    "name",
    [
        "TGI_MAX_NUM_BATCHED_TOKENS",
        "TRITON_GPU_MEMORY_UTILIZATION",
        "TXGEMMA_MODEL",
        "T5_MODEL",
        "TEGEMMA3_K",
        "T5GEMMA2_HOME",
        "GEMMA_MODEL",
        "MT5GEMMA_MODEL",
        "TGEM_DTYPE",
    ],
)
def test_names_of_others(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Alike in what follows another prefix, or in the prefix alone: other programs' own business."""
    monkeypatch.setenv(name, "3")
    assert load_settings() == Settings()


def test_one_setting_under_two_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5GEMMA_K", "3")
    monkeypatch.setenv("t5gemma_k", "4")
    with pytest.raises(SettingsError, match="are the same setting"):
        load_settings()


def test_bytes_that_are_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a value could not be logged, nor be a path in a reply (N12)."""
    monkeypatch.setenv("T5GEMMA_DRAFT", os.fsdecode(b"\xfcber"))
    with pytest.raises(SettingsError, match=r"^T5GEMMA_DRAFT: the value is not UTF-8$"):
        load_settings()


@pytest.mark.parametrize("blank", ["", " ", "\n", " \t "])
def test_blank_is_unset(monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    """Of every type of setting, as an empty value is; only keys that are blank were meant to close the API."""
    for field in Settings.model_fields.keys() - {"api_keys"}:
        monkeypatch.setenv(variable(field), blank)
    assert load_settings() == Settings()
    if blank:
        monkeypatch.setenv("T5GEMMA_API_KEYS", blank)
        with pytest.raises(SettingsError, match="names no key"):
            load_settings()


def test_blanks_around_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mounted secret or a YAML block ends with a line end; it is no part of the value."""
    for field, value in {"k": "3", "dtype": "bfloat16", "enforce_eager": "true", "draft": "/a b"}.items():
        monkeypatch.setenv(variable(field), f" {value}\n")
    monkeypatch.setenv("T5GEMMA_API_KEYS", "sk-one, sk-two\n")
    settings = load_settings()
    assert (settings.k, settings.dtype, settings.enforce_eager, settings.draft) == (
        3,
        "bfloat16",
        True,
        "/a b",
    )
    assert [key.get_secret_value() for key in settings.api_keys] == ["sk-one", "sk-two"]


def test_empty_in_the_environment_does_not_hide_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty is unset, so the next place is asked."""
    Path(".env").write_text("T5GEMMA_K=2\n")
    monkeypatch.setenv("T5GEMMA_K", "")
    assert load_settings().k == 2
