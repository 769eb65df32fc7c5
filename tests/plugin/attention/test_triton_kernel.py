"""The Triton kernel against the naive reference: by Triton's interpreter everywhere, on the device with `-m gpu`."""

from dataclasses import replace

import pytest
import torch

from plugin.attention.paged_batch import LAYOUTS, BatchSpec, PagedBatch, make_batch
from plugin.attention.triton_kernel import launch_for, merged_attention, write_kv
from tests.plugin.attention.interpreted import interpreted_errors
from tests.plugin.attention.kernel_cases import (
    CASES,
    CONTROLS,
    SHARED,
    TOLERANCE,
    attend,
    attention_error,
    batch,
    control_error,
    float64_reference,
    launch,
    others_difference,
    relative_error,
    unfinished,
    write_difference,
)


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, float]]:
    return interpreted_errors("tests.plugin.attention.kernel_cases")


@pytest.mark.parametrize("name", CASES)
def test_equals_the_naive_reference(interpreted, name):
    assert interpreted["cases"][name] < TOLERANCE[CASES[name][0].dtype]


def test_counters_of_finished_splits_are_zero_after_every_launch(interpreted):
    assert interpreted["unfinished"] == 0


@pytest.mark.parametrize("name", SHARED)
def test_a_request_rounds_the_same_whatever_the_others_lengths_are(interpreted, name):
    assert interpreted["others"][name] == 0.0


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_the_comparison_sees_a_wrong_call(interpreted, name):
    assert interpreted["controls"][name] > 0.05


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writes_what_the_torch_version_writes(interpreted, layout):
    assert interpreted["writes"][layout] == 0.0


def _call(inputs: PagedBatch, **changed: object) -> None:
    for name in ("self", "cross"):
        if (cache := changed.pop(f"{name}_cache", None)) is not None:
            changed[f"{name}_pages"] = replace(getattr(inputs, f"{name}_pages"), cache=cache)
    arguments = {
        "q": inputs.q, "query_start": inputs.query_start, "max_query_len": 1, "self_pages": inputs.self_pages,
        "cross_pages": inputs.cross_pages, "window": None, "scale": 1.0, "out": torch.empty_like(inputs.q),
    }  # fmt: skip
    merged_attention(**{**arguments, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": torch.zeros(1, 4, 48)}, "head_dim is 48"),
        ({"q": torch.zeros(1, 3, 32)}, "3 query heads do not divide over 2 KV heads"),
        ({"cross_cache": torch.zeros(2, 2, 16, 32)}, r"cross_cache is \[2, 2, 16, 32\]"),
        ({"self_cache": torch.zeros(2, 2, 64, 16).transpose(2, 3)}, "self_cache has stride 16"),
        ({"out": torch.zeros(1, 4, 32, dtype=torch.float16)}, "out torch.float16"),
    ],
)
def test_refuses_what_it_does_not_serve(changed, message):
    with pytest.raises(ValueError, match=message):
        _call(make_batch(batch([1], [3], [3]), "cpu"), **changed)


def test_write_refuses_slots_of_another_length():
    k = torch.zeros(3, 2, 32)
    with pytest.raises(ValueError, match=r"slots are \[2\]"):
        write_kv(torch.zeros(2, 2, 16, 64), torch.zeros(2, dtype=torch.long), k, k)


@pytest.mark.parametrize("invariant", ["0", "1"])
def test_under_batch_invariance_the_launch_is_that_of_a_request_alone(monkeypatch, invariant):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", invariant)
    inputs = make_batch(replace(batch([1], [3], [3]), table_tokens=9000), "cpu")
    alone, among = (launch_for(inputs.q, n, 8, inputs.self_pages, inputs.cross_pages, None) for n in (1, 64))
    assert (alone == among) == (invariant == "1")


# On the device


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_gpu_equals_the_naive_reference(name):
    assert attention_error(name, "cuda") < TOLERANCE[CASES[name][0].dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHARED)
def test_gpu_a_request_rounds_the_same_whatever_the_others_lengths_are(name):
    assert others_difference(name, "cuda") == 0.0
    assert unfinished("cuda") == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONTROLS)
def test_gpu_controls_the_comparison_sees_a_wrong_call(name):
    assert control_error(name, "cuda") > 0.05


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gpu_writes_what_the_torch_version_writes(layout, dtype):
    assert write_difference(layout, "cuda", dtype) == 0.0


# 1B's shape: 4 query heads, 1 KV head, head_dim 256; lengths of a real batch.
LONG = BatchSpec((1, 1, 8, 1), (900, 33, 1000, 1), (2048, 5, 64, 1500))
HEADS = [(4, 1, 256), (8, 4, 256), (8, 1, 128), (6, 2, 64)]


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 512])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
def test_gpu_real_lengths(heads, kv_heads, dim, dtype, window):
    spec = replace(LONG, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, dtype=dtype)
    inputs = make_batch(spec, "cuda")
    assert relative_error(attend(inputs, window, None), float64_reference(inputs, window)) < TOLERANCE[dtype]


@pytest.mark.gpu
def test_gpu_values_beyond_float16s_range_stay_finite_between_the_splits():
    inputs = make_batch(replace(batch([4], [40], [60]), dtype=torch.bfloat16), "cuda")
    for pages in (inputs.self_pages, inputs.cross_pages):
        pages.cache[..., 32:] = 1e5
    assert bool(
        (attend(inputs, None, launch(4)) > 6e4).all() & attend(inputs, None, launch(4)).isfinite().all()
    )
