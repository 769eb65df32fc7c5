"""Cross keys and values through captured graphs: by fakes on the CPU, bit for bit with `-m gpu`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from vllm.utils.gc_utils import freeze_gc_for_cudagraph_capture

from plugin.verifier.cross_graphs import MOST_PIECES
from plugin.verifier.cross_kv import CrossKV
from tests.plugin.verifier.cross_cases import (
    caches_of,
    decoder,
    fake_graphs,
    naive_stores,
    prompt_states,
    wanted,
)

SIZES = [16, 64]
BLOCKS = 40
# Name: prompt lengths, the graph's size.
CASES: dict[str, tuple[tuple[int, ...], int]] = {
    "one prompt": ((5,), 16),
    "several": ((3, 1, 7), 16),
    "one that fills a graph": ((16,), 16),
    "several that fill a graph": ((30, 33, 1), 64),
    "one token more than a graph": ((17,), 64),
    "over several pages": ((40, 20), 64),
}
# Beyond the largest graph: prompt lengths, and the sizes of the graphs that are replayed; None where it is too much.
LONG: dict[str, tuple[tuple[int, ...], list[int] | None]] = {
    "a token more than the largest": ((65,), [64, 16]),
    "a prompt across two": ((40, 25), [64, 16]),
    "whole graphs": ((64, 128), [64, 64, 64]),
    "prompts that begin and end in the middle": ((100, 50, 20, 1), [64, 64, 64]),
    "all that goes": ((160, 160, 160, 32), [64] * MOST_PIECES),
    "a token more": ((160, 160, 160, 33), None),
}
ROWS = (3, 0, 2, 1)


def block_table(device: str = "cpu", seed: int = 0) -> torch.Tensor:
    """`[4, 10]`, each block in one place."""
    blocks = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed))
    return blocks.view(4, 10).int().to(device)


class Captured:
    """A `CrossKV` with graphs, its table, and what was stored since."""

    def __init__(self, cross: CrossKV, table: torch.Tensor, stored: list[int]) -> None:
        self.cross, self.table, self.stored = cross, table, stored

    def check(self, lengths: Sequence[int], rows: Sequence[int], *tokens: int, seed: int = 0) -> None:
        """All caches, which are empty before and after, hold these prompts and nothing else, stored in launches of so
        many tokens."""
        self.stored.clear()
        states = prompt_states(lengths, self.cross.weight, seed)
        self.cross.write(states, rows, self.table)
        assert self.stored == list(tokens)
        for cache, want in zip(
            caches_of(self.cross), wanted(self.cross, states, rows, self.table), strict=True
        ):
            torch.testing.assert_close(cache, want, atol=1e-5, rtol=1e-5)
            cache.zero_()


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Captured:
    made, table = decoder(blocks=BLOCKS), block_table()
    naive_stores(monkeypatch, made)
    stored = fake_graphs(monkeypatch)
    cross = CrossKV(made)
    cross.bind()
    cross.capture(SIZES, table, "a pool")
    return Captured(cross, table, stored)


@pytest.mark.parametrize("name", CASES)
def test_prompts_go_through_the_smallest_graph_that_holds_them(captured: Captured, name: str) -> None:
    lengths, size = CASES[name]
    captured.check(lengths, ROWS[: len(lengths)], size)


@pytest.mark.parametrize("name", LONG)
def test_more_tokens_are_stored_in_pieces(captured: Captured, name: str) -> None:
    lengths, sizes = LONG[name]
    captured.check(lengths, ROWS[: len(lengths)], *(sizes or [sum(lengths)]))


def test_a_replay_does_not_store_what_is_left_of_the_one_before(captured: Captured) -> None:
    """Longer prompts of other rows, through the same graph and through a larger one."""
    for seed, (lengths, rows, tokens) in enumerate(
        [((50, 14), (1, 3), 64), ((20,), (2,), 64), ((9, 7), (0, 1), 16), ((2,), (3,), 16), ((17,), (0,), 64)]
    ):
        captured.check(lengths, rows, tokens, seed=seed)


def test_the_block_table_is_read_as_it_is_then(captured: Captured) -> None:
    captured.check((5, 20), (0, 1), 64)
    captured.table.copy_(block_table(seed=1))
    captured.check((5, 20), (0, 1), 64)


def test_a_table_that_lies_elsewhere_is_read_all_the_same(captured: Captured) -> None:
    """Without a graph. The rows of a step's requests are the captured table's first."""
    whole = captured.table
    captured.table = whole[:3]
    captured.check((5,), (2,), 16)
    captured.table = block_table(seed=2)
    captured.check((5,), (2,), 5)
    captured.table = whole[1:]
    captured.check((5,), (2,), 5)


def test_states_may_lie_one_behind_the_other_or_apart(captured: Captured) -> None:
    """As the encoder's graph leaves them, or as they are held from earlier steps; and of one prompt twice."""
    together = torch.cat(prompt_states((4, 8), captured.cross.weight)).split([4, 8])
    for states in (together, [each.clone() for each in together], [together[1], together[0], together[1]]):
        rows = ROWS[: len(states)]
        captured.cross.write(states, rows, captured.table)
        want = wanted(captured.cross, states, rows, captured.table)
        for cache, one in zip(caches_of(captured.cross), want, strict=True):
            torch.testing.assert_close(cache, one, atol=1e-5, rtol=1e-5)
            cache.zero_()


def test_a_prompt_of_no_row_is_stored_nowhere(captured: Captured) -> None:
    captured.cross.write(prompt_states((5,), captured.cross.weight), [-1], captured.table)
    assert not any(cache.any() for cache in caches_of(captured.cross))


@pytest.mark.parametrize("wrong", [(0, 3), (3, 1)])
def test_control_a_wrong_row_is_seen(captured: Captured, wrong: tuple[int, int]) -> None:
    states = prompt_states((5, 9), captured.cross.weight)
    captured.cross.write(states, wrong, captured.table)
    want = wanted(captured.cross, states, (3, 0), captured.table)
    assert all((a - b).abs().max() > 0.1 for a, b in zip(caches_of(captured.cross), want, strict=True))


# On the device


class OnDevice:
    """A `CrossKV` with graphs, and another of the same weights without."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.cross, self.plain = (
            CrossKV(decoder(device="cuda", dtype=dtype, blocks=BLOCKS, hidden=64, dim=32)) for _ in range(2)
        )
        self.table = block_table("cuda")
        for each in (self.cross, self.plain):
            each.bind()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        # As vLLM captures: graphs of an earlier case that go meanwhile would spoil these.
        with freeze_gc_for_cudagraph_capture(), torch.cuda.stream(stream):
            self.cross.capture(SIZES, self.table, torch.cuda.graph_pool_handle())
        torch.cuda.synchronize()

    def differing(
        self, lengths: Sequence[int], rows: Sequence[int], size: int | None, seed: int = 0, shift: int = 0
    ) -> int:
        """Values of all caches that differ by a bit from those stored without a graph of as many tokens, whose product
        rounds alike; `shift` rows further on, for the control."""
        states = prompt_states(lengths, self.cross.weight, seed)
        self.cross.write(states, [(row + shift) % 4 for row in rows], self.table)
        if size is None or size == sum(lengths):
            self.plain.write(states, rows, self.table)
        else:
            padding = states[0].new_zeros(size - sum(lengths), states[0].shape[1])
            self.plain.write([*states, padding], [*rows, -1], self.table)
        found = 0
        for ours, theirs in zip(caches_of(self.cross), caches_of(self.plain), strict=True):
            assert theirs.any()
            found += int((ours != theirs).sum())
            ours.zero_()
            theirs.zero_()
        return found


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def on_device(request: pytest.FixtureRequest) -> Iterator[OnDevice]:
    with torch.inference_mode():
        yield OnDevice(request.param)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_gpu_a_replay_stores_what_is_stored_without(on_device: OnDevice, name: str) -> None:
    lengths, size = CASES[name]
    for rows in (ROWS, (1, 2, 0, 3)):
        assert on_device.differing(lengths, rows[: len(lengths)], size) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", LONG)
def test_gpu_pieces_store_what_is_stored_at_once(on_device: OnDevice, name: str) -> None:
    """But for the product's rounding, which is another one for another number of tokens."""
    lengths, _ = LONG[name]
    states, rows = prompt_states(lengths, on_device.cross.weight), ROWS[: len(lengths)]
    for _ in range(3):  # pinned buffers go round
        for each in (on_device.cross, on_device.plain):
            each.write(states, rows, on_device.table)
        for ours, theirs in zip(caches_of(on_device.cross), caches_of(on_device.plain), strict=True):
            assert theirs.any()
            tolerance = 1e-4 if ours.dtype == torch.float32 else 3e-2
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
            ours.zero_()


@pytest.mark.gpu
def test_gpu_a_replay_does_not_store_what_is_left_of_the_one_before(on_device: OnDevice) -> None:
    for seed, (lengths, rows, size) in enumerate(
        [((50, 14), (1, 3), 64), ((20,), (2,), 64), ((9, 7), (0, 1), 16), ((2,), (3,), 16), ((17,), (0,), 64)]
    ):
        assert on_device.differing(lengths, rows, size, seed) == 0


@pytest.mark.gpu
def test_gpu_control_a_wrong_row_is_seen(on_device: OnDevice) -> None:
    assert on_device.differing((5, 9), (3, 0), 16, shift=1) > 0
    assert on_device.differing((5, 9), (3, 0), 16) == 0


@pytest.mark.gpu
def test_gpu_a_table_that_is_changed_is_read_and_another_one_too(on_device: OnDevice) -> None:
    on_device.table.copy_(block_table("cuda", seed=1))
    assert on_device.differing((5, 20), (0, 1), 64) == 0
    on_device.table = block_table("cuda", seed=2)
    assert on_device.differing((5, 20), (0, 1), None) == 0
