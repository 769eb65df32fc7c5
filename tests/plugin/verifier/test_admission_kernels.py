"""The GPU programs behind a request's admission: by Triton's interpreter everywhere, on the device with `-m gpu`."""

import json
import os
import subprocess
import sys

import pytest
import torch

from plugin.attention.cross_write import cross_write
from plugin.attention.norm_rope import norm_rope_in_place
from plugin.attention.paged_batch import LAYOUTS
from tests.plugin.verifier.admission_cases import (
    DTYPES,
    LENGTHS,
    WINDOWS,
    attention_error,
    cross_write_difference,
    norm_rope_difference,
)

STEPS = 8
"""Roundings of the result's type that the order of a sum may cost."""


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, float]]:
    """Errors of all cases, from a process of their own: this one must not see Triton in its interpreter mode."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugin.verifier.admission_cases"],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("window", WINDOWS)
def test_encoder_attention_equals_pytorchs(interpreted, name, window):
    assert interpreted["attention"][f"{name}, window {window}"] < 1e-5


def test_some_rows_of_a_prompt_see_all_of_its_keys(interpreted):
    errors = interpreted["rows"]
    assert errors
    assert all(error < 1e-5 for error in errors.values()), errors


@pytest.mark.parametrize("kernel", ["norm_rope", "cross_write"])
def test_fused_operations_equal_the_single_ones(interpreted, kernel):
    errors = interpreted[kernel]
    assert errors
    assert all(error < STEPS for error in errors.values()), errors


def test_controls_the_comparisons_see_a_wrong_result(interpreted):
    """A key left out, a window off by one and a page shifted by one slot."""
    assert all(error > 100 * STEPS for error in interpreted["controls"].values()), interpreted["controls"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv": torch.zeros(3, 100)}, r"kv is \[3, 100\]"),
        ({"like": torch.zeros(2, 1, 16, 64, dtype=torch.bfloat16)}, "of torch.bfloat16"),
        ({"rows": torch.zeros(2, dtype=torch.int32)}, r"\[2\] rows and \[3\] positions for 3 tokens"),
    ],
)
def test_cross_write_refuses_what_it_does_not_serve(changed, message):
    arguments = {
        "kv": torch.zeros(3, 2 * 2 * 32), "k_weights": torch.zeros(2, 32), "eps": 1e-6,
        "cache_addresses": torch.zeros(2, dtype=torch.int64), "like": torch.zeros(2, 1, 16, 64),
        "rows": torch.zeros(3, dtype=torch.int32), "positions": torch.zeros(3, dtype=torch.int32),
        "block_table": torch.zeros(1, 2, dtype=torch.int32),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        cross_write(**{**arguments, **changed})


def test_norm_and_rotation_refuse_rows_that_are_not_contiguous():
    with pytest.raises(ValueError, match="strides"):
        norm_rope_in_place(
            torch.zeros(12, 2).t(),
            torch.zeros(2),
            torch.zeros(4, 4),
            torch.zeros(4),
            torch.zeros(4),
            1e-6,
            1,
            1,
        )


# On the device


@pytest.mark.gpu
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("window", WINDOWS)
def test_gpu_encoder_attention_equals_pytorchs(name, window):
    for heads, kv, dim in ((4, 2, 32), (4, 1, 256), (8, 4, 128)):
        assert attention_error(LENGTHS[name], window, "cuda", heads=heads, kv=kv, dim=dim) < 2e-5


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_gpu_fused_operations_equal_the_single_ones(dtype):
    for dim in (32, 64, 256):
        assert norm_rope_difference(dim, dtype, "cuda") < STEPS
    for layout in LAYOUTS:
        for kv_heads in (1, 3, 4):
            assert cross_write_difference(layout, dtype, "cuda", kv_heads=kv_heads) < STEPS
