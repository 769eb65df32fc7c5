"""The launch shapes: what a graph is captured with must hold for every batch that it serves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.attention.launch_shape import (
    MAX_SPLITS,
    choose_launch_shape,
    join_block_d,
    join_overlaps,
    power_of_two,
)

SMS = 132


@pytest.mark.parametrize(("n", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (16, 16), (17, 32)])
def test_power_of_two(n, power):
    assert power_of_two(n) == power


@given(
    rows=st.integers(1, 16 * 8),
    requests=st.integers(1, 512),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    head_dim=st.sampled_from([32, 64, 128, 256]),
    itemsize=st.sampled_from([2, 4]),
    max_tokens=st.integers(1, 10**6),
)
def test_every_row_is_covered_and_every_constant_serves_triton(
    rows, requests, kv_heads, head_dim, itemsize, max_tokens
):
    shape = choose_launch_shape(rows, requests, kv_heads, itemsize, max_tokens, SMS)
    assert shape.block_m * shape.row_blocks >= rows > shape.block_m * (shape.row_blocks - 1)
    assert shape.block_m >= 16
    assert shape.block_m == power_of_two(shape.block_m)
    assert shape.block_n == power_of_two(shape.block_n)
    assert 1 <= shape.splits <= MAX_SPLITS
    assert head_dim % join_block_d(shape.splits, head_dim) == 0
    # q, the tiles in flight and the weights of a program fit a multiprocessor's 227 KiB of shared memory.
    tiles = 2 * shape.block_n * head_dim * (shape.num_stages - 1)
    assert (shape.block_m * head_dim + tiles) * itemsize <= 200 * 1024


def test_a_long_lonely_request_is_split_over_the_device():
    for rows in (4, 32, 64):
        assert choose_launch_shape(rows, 1, 1, 2, 8192 + 64, SMS).splits == SMS - 3  # tiles of 64 keys
    for rows in (32, 64):
        assert choose_launch_shape(rows, 1, 1, 2, 60_000, SMS).splits == SMS


def test_a_batch_that_fills_the_device_is_not_split():
    assert choose_launch_shape(4, 600, 1, 2, 3072, SMS).splits == 1


def test_a_short_request_is_not_split_finer_than_its_keys():
    assert choose_launch_shape(4, 1, 1, 2, 192, SMS).splits == 6
    assert choose_launch_shape(4, 1, 1, 2, 40, SMS).splits == 2
    assert choose_launch_shape(4, 1, 1, 2, 32, SMS).splits == 1


@pytest.mark.parametrize(("rows", "requests"), [(4, 1), (32, 1), (32, 4), (64, 1)])
def test_few_programs_share_out_the_values_and_join_where_they_attend(rows, requests):
    shape = choose_launch_shape(rows, requests, 1, 2, 3072, SMS)
    assert shape.fused
    assert 1 < shape.slices <= shape.splits
    assert SMS / 2 < shape.slices * shape.splits * requests <= 2 * SMS


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
def test_a_slice_has_sixteen_values_at_least(head_dim):
    shape = choose_launch_shape(32, 1, 1, 2, 3072, SMS, head_dim)
    assert head_dim // shape.slices >= 16


def test_a_full_device_reads_every_key_once():
    assert choose_launch_shape(32, 64, 1, 2, 3072, SMS).slices == 1


@pytest.mark.parametrize(
    ("block_n", "pages", "whole"),
    [(64, (16, 16), 64), (32, (64, 32), 32), (32, (48, 16), 16), (64, (16, 96), 32), (64, (80, 48), 16)],
)
def test_a_page_that_holds_a_tile_holds_whole_tiles(block_n, pages, whole):
    from plugin.attention.triton_kernel import whole_tiles

    assert whole_tiles(block_n, *pages) == whole


def test_a_request_that_may_be_long_is_joined_in_a_launch_of_its_own():
    short, long = (choose_launch_shape(32, 1, 1, 2, tokens, SMS) for tokens in (4096, 4097))
    assert (short.fused, long.fused) == (True, False)
    assert (long.slices, long.splits) == (1, 65)


@pytest.mark.parametrize("requests", [64, 16, 1])
def test_many_keys_are_joined_in_a_launch_of_their_own(requests):
    shape = choose_launch_shape(4, requests, 1, 2, 100_000, SMS)
    assert shape.splits > 1
    assert not shape.fused


@pytest.mark.parametrize(
    ("splits", "programs", "overlaps"),
    [(132, 32, True), (132, 128, False), (132, 256, False), (4, 512, True)],
)
def test_nothing_begins_beside_a_join_of_few_requests_that_takes_the_device(splits, programs, overlaps):
    assert join_overlaps(splits, programs, SMS) == overlaps
