"""The hooks fit the installed vLLM, say clearly when they do not, and leave other models alone."""

from types import ModuleType, SimpleNamespace

import pytest
import torch

import plugin
from plugin import vllm_hooks
from plugin.vllm_hooks import configuration, v1_runner
from plugin.vllm_hooks.hook import HookError, replace
from plugin.vllm_hooks.v1_runner import expand_batch_to_tokens


def test_register_installs_every_hook_and_twice_is_once():
    plugin.register()
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    first = GPUModelRunner._execute_mm_encoder
    vllm_hooks.install()
    assert GPUModelRunner._execute_mm_encoder is first
    assert first._t5gemma2


def test_a_vanished_function_is_named():
    module = ModuleType("vllm.somewhere")
    with pytest.raises(HookError, match=r"vllm\.somewhere\.gone"):
        replace(module, "gone", (), lambda stock: stock)


def test_changed_parameters_are_named():
    module = ModuleType("vllm.somewhere")
    module.f = lambda a, c: None
    with pytest.raises(HookError, match=r"takes \('a', 'c'\), but .* takes \('a', 'b'\)"):
        replace(module, "f", ("a", "b"), lambda stock: stock)


def test_hooks_of_one_function_stand_one_around_the_other_each_once():
    module = ModuleType("vllm.somewhere")
    module.f = lambda a: [a]

    def inner(stock):
        return lambda a: [*stock(a), "inner"]

    def outer(stock):
        return lambda a: [*stock(a), "outer"]

    for _ in range(2):
        replace(module, "f", ("a",), inner)
        replace(module, "f", ("a",), outer)
    assert module.f(1) == [1, "inner", "outer"]


@pytest.mark.parametrize("counts", [[1, 3, 2], [4], [1, 1]])
def test_expand_keeps_fractions_and_replaces_greedy(counts):
    """O9: the CPU build's own version loses the fraction of a temperature."""
    temperatures = torch.tensor([0.0, 0.7, 1.3])[: len(counts)]
    got = expand_batch_to_tokens(
        temperatures, torch.tensor(counts).cumsum(0), sum(counts), replace_from=0, replace_to=1
    )
    want = [
        1.0 if t == 0 else t for t, n in zip(temperatures.tolist(), counts, strict=True) for _ in range(n)
    ]
    assert got.tolist() == pytest.approx(want)


def test_control_the_stock_expand_is_wrong_on_the_cpu():
    """O9, negative control: once this fails, the hook can go."""
    import vllm._C  # noqa: F401  the kernel behind it
    from vllm.utils import cpu_triton_utils

    got = torch.zeros(4)
    cpu_triton_utils._expand_kernel_impl(got, torch.tensor([0.0, 0.7]), torch.tensor([2, 4]), 0, 1)
    assert got.tolist() != pytest.approx([1.0, 1.0, 0.7, 0.7])


class FakeRunner:
    """What `_execute_mm_encoder` touches."""

    def __init__(self, is_encoder_decoder: bool) -> None:
        self.model, self.model_config = object(), SimpleNamespace(is_encoder_decoder=is_encoder_decoder)
        self.input_batch = SimpleNamespace(req_id_to_index={"new": 1, "resumed": 0})


@pytest.mark.parametrize(
    ("encoder_decoder", "order"), [(True, ["resumed", "new"]), (False, ["new", "resumed"])]
)
def test_encoder_inputs_follow_the_batch(monkeypatch, encoder_decoder, order):
    """O5: sorted for encoder-decoder models, as scheduled for all others; the scheduler's own object stays
    untouched."""
    seen = []
    module = ModuleType("vllm.v1.worker.gpu_model_runner")

    class GPUModelRunner(FakeRunner):
        def _execute_mm_encoder(self, scheduler_output):
            seen.extend(scheduler_output.scheduled_encoder_inputs)

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(__import__("sys").modules, "vllm.v1.worker.gpu_model_runner", module)
    v1_runner.encoder_outputs_in_batch_order()
    output = SimpleNamespace(scheduled_encoder_inputs={"new": [0], "resumed": [0]})
    GPUModelRunner(encoder_decoder)._execute_mm_encoder(output)
    assert seen == order
    assert list(output.scheduled_encoder_inputs) == ["new", "resumed"]


def test_prompt_length_is_the_decoders_for_t5gemma2_only():
    """`max_tokens` is bounded by decoder positions, not by what the encoder leaves of them (O14)."""
    from vllm.entrypoints.serve.engine import serving

    plugin.register()
    prompt = {
        "type": "enc_dec",
        "encoder_prompt": {"type": "token", "prompt_token_ids": [5] * 500},
        "decoder_prompt": {"type": "token", "prompt_token_ids": [2]},
    }
    ours = SimpleNamespace(is_encoder_decoder=True, hf_config=SimpleNamespace(model_type="t5gemma2"))
    other = SimpleNamespace(is_encoder_decoder=True, hf_config=SimpleNamespace(model_type="whisper"))
    assert serving.extract_prompt_len(ours, prompt) == 1
    assert serving.extract_prompt_len(other, prompt) == 500


def test_a_relative_verifier_is_relative_to_the_draft(monkeypatch, tmp_path):
    from vllm.engine import arg_utils

    plugin.register()
    hooked = arg_utils.maybe_override_with_speculators
    (tmp_path / "dflash").mkdir()
    answer = {"verifier": "../verifier"}
    monkeypatch.setattr(arg_utils, "maybe_override_with_speculators", lambda *a, **k: None)

    def stock(
        model,
        tokenizer,
        trust_remote_code,
        revision=None,
        vllm_speculative_config=None,
        hf_token=None,
        **kwargs,
    ):
        return answer["verifier"], answer["verifier"], {"model": model}

    monkeypatch.setattr(arg_utils, "maybe_override_with_speculators", stock)
    configuration.draft_as_model()
    draft = str(tmp_path / "dflash")
    verifier, tokenizer, _ = arg_utils.maybe_override_with_speculators(draft, None, False)
    assert verifier == tokenizer == str(tmp_path / "verifier")
    answer["verifier"] = "google/t5gemma-2-1b-1b"
    assert arg_utils.maybe_override_with_speculators(draft, None, False)[0] == "google/t5gemma-2-1b-1b"
    assert hooked._t5gemma2


@pytest.mark.parametrize(
    ("new", "fits"),
    [
        (lambda a, **more: None, True),
        (lambda a, *args, **more: None, True),
        (lambda a: None, False),  # it would lose what it does not know
        (lambda a, b, **more: None, False),  # `b` is no longer the second
    ],
)
def test_a_newer_vllm_may_have_more_parameters_for_hooks_that_pass_them_on(new, fits):
    module = ModuleType("vllm.somewhere")
    module.f = lambda a, between=0, b=0: None
    if fits:
        replace(module, "f", ("a", "b"), lambda stock: new)
        assert module.f._t5gemma2
        return
    with pytest.raises(HookError, match="takes"):
        replace(module, "f", ("a", "b"), lambda stock: new)


def test_an_optional_function_may_be_missing_and_another_parameter_may_not():
    module = ModuleType("vllm.somewhere")
    replace(module, "f", (), lambda stock: stock, optional=True)
    assert not hasattr(module, "f")
    module.f = lambda a, b: None
    with pytest.raises(HookError):
        replace(module, "f", ("a",), lambda stock: lambda a, **more: None, optional=True)
