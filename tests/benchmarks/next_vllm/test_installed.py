"""Against the vLLM that is installed everything is the same, and nothing that matters is left out."""

from benchmarks.next_vllm.__main__ import compare, installed, main
from plugin.vllm_hooks.hook import REPLACED

SOMEWHERE = "vllm.somewhere"
"""A made-up module of other tests, which may run before in this process."""


def test_everything_is_the_same():
    verdicts = compare(installed())
    assert [one for one in verdicts if one.status != "same"] == []
    known = {(one.use.kind, one.use.path[-1]) for one in verdicts if one.use.path}
    assert known >= {
        ("name", "AsyncLLM"),
        ("name", "dynamic_sd_lookup"),  # an attribute of what a hook is called with
        ("call", "create_engine_config"),
        ("override", "propose"),
        ("override", "prepare_attn"),
        ("hook", "prepare_inputs"),
        ("store", "DFlashProposer"),
    }
    hooks = {(one.use.module, one.use.path) for one in verdicts if one.use.kind == "hook"}
    assert hooks == {key for key in REPLACED if key[0].startswith("vllm.") and key[0] != SOMEWHERE}


def test_an_unknown_wheel_is_exit_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "none.whl"), "--cache", str(tmp_path)]) == 2
    assert "none.whl" in capsys.readouterr().err
