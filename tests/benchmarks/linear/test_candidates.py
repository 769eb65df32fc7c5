"""The candidates of a sweep: cuts that a program can have, the chosen one among them, no two the same."""

import pytest

from benchmarks.linear.candidates import CANDIDATES, cuts
from benchmarks.linear.stack import CONTEXT_SHAPES, SHAPES
from plugin.projection.triton_linear import FETCH_BYTES, MAX_SPLITS, choose_cut

SHARED_BYTES = 227 << 10
"""Of an H200's multiprocessor, that a program may have."""


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_covers_its_weight_in_whole_tiles(name):
    outputs, inputs = {**SHAPES, **CONTEXT_SHAPES}[name]
    found = list(cuts(name))
    assert len(found) == len(set(found))
    both = 2 if name == "gate_up" else 1
    for cut in found:
        assert outputs % (both * cut.block_n) == 0
        assert inputs % (cut.splits * cut.block_k) == 0
        assert cut.splits <= (1 if both == 2 else MAX_SPLITS)
        assert 0 <= cut.fetched * cut.splits * cut.block_k <= inputs
        for tokens in (16, 64):
            tile = 2 * cut.block_k * (both * cut.block_n + tokens)
            assert cut.num_stages * tile <= SHARED_BYTES


@pytest.mark.parametrize("name", CANDIDATES)
def test_the_chosen_cuts_are_among_them(name):
    found = list(cuts(name, (FETCH_BYTES,)))
    shape = {**SHAPES, **CONTEXT_SHAPES}[name]
    assert found[0] == choose_cut(*shape, 16, name == "o")
    assert choose_cut(*shape, 32, name == "o") in found
