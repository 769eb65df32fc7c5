"""Nothing that a request on the CPU meets is compiled when it is first called (N01)."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest
import torch

import plugin
from plugin.vllm_hooks.eager_functions import COMPILED

ELSEWHERE = {
    "v1/spec_decode/utils.py",  # update_num_computed_tokens_for_batch_change, which the runner imports by name
    "v1/sample/ops/logprobs.py",  # batched_count_greater_than, which the sampler imports by name
    "v1/sample/ops/topk_topp_sampler.py",  # compiled_random_sample
}
"""Files of the V1 engine with such a decorator; their functions are in COMPILED where they are looked up."""
NOT_SERVED = {
    "v1/attention/backends/flex_attention.py",  # refused: plugin.verifier.config
    "v1/watermarking/prfs/philox.py",  # no watermark is configured
    "v1/worker/gpu/spec_decode/adaptive_verification.py",  # off unless asked for; CUDA
}


@pytest.mark.parametrize(("module", "name"), COMPILED)
def test_functions_are_as_they_are_written(module, name):
    plugin.register()
    function = getattr(importlib.import_module(module), name)
    assert function._t5gemma2
    assert function.__wrapped__._torchdynamo_orig_callable  # negative control: vLLM's own would be compiled


def test_ranks_without_a_compiler():
    """The first `logprobs` of a process; `fail_on_recompile` makes any compilation an error."""
    plugin.register()
    from vllm.v1.sample import sampler

    with torch.compiler.set_stance("fail_on_recompile"):
        ranks = sampler.batched_count_greater_than(torch.tensor([[0.1, 0.7, 0.2]]), torch.tensor([[0.2]]))
        assert ranks.tolist() == [2]
        with pytest.raises(RuntimeError):
            sampler.batched_count_greater_than.__wrapped__(torch.ones(1, 3), torch.ones(1, 1))


def test_no_other_function_of_the_v1_engine_compiles_itself():
    """Files with a compiling decorator are the known ones."""
    root = Path(importlib.util.find_spec("vllm").origin).parent
    call = re.compile(r"^\s*(@torch\.compile\b|\w+ = torch\.compile\()", re.M)
    found = {str(path.relative_to(root)) for path in root.glob("v1/**/*.py") if call.search(path.read_text())}
    assert found == ELSEWHERE | NOT_SERVED
