"""A pass in parts gives what the whole one gives, and none of its parts does more than its own rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.encoder_memory import random_encoder
from plugin.attention import bidirectional
from plugin.verifier.encoder import passes
from plugin.verifier.encoder.passes import EncoderPass, Room
from plugin.verifier.encoder.text_encoder import EncoderAttention, EncoderLayer, TextEncoder
from plugin.verifier.layers import ScaledEmbedding
from tests.reference.tiny import tiny_config

LENGTH = 300


@pytest.fixture(scope="module")
def encoder() -> Iterator[TextEncoder]:
    """The tiny verifier's, random: layers with a window and without."""
    config = tiny_config().encoder.text_config
    assert {*config.layer_types} == {"sliding_attention", "full_attention"}
    with random_encoder(config) as made:
        yield made


def begun(encoder: TextEncoder, length: int = LENGTH, room: Room | None = None) -> EncoderPass:
    ids = torch.randint(9, 200, (length,), generator=torch.Generator().manual_seed(1))
    bounds = torch.tensor([0, length], dtype=torch.int32)
    return EncoderPass(encoder, ids, torch.arange(length), bounds, length, room)


def states(encoder: TextEncoder, rows: int, room: Room | None = None) -> torch.Tensor:
    """After parts of so many rows, which may begin in one stage and end in the next."""
    under_way = begun(encoder, room=room)
    while rest := under_way.num_rows - under_way.rows_done:
        with pytest.raises(RuntimeError, match=f"done {under_way.rows_done} of"):
            _ = under_way.states
        under_way.advance(min(rows, rest))
    return under_way.states


@pytest.mark.parametrize("rows", [64, 75, 100, 299, LENGTH, 700])
def test_a_pass_in_parts_is_the_whole_one(encoder: TextEncoder, rows: int) -> None:
    """Parts that divide the prompt and those that leave a rest, down to one token; whole stages, and more than one."""
    whole = states(encoder, LENGTH * 100)
    torch.testing.assert_close(states(encoder, rows), whole, atol=1e-5, rtol=1e-5)


def test_a_pass_in_a_room_stays_in_it(encoder: TextEncoder) -> None:
    """As graphs need it: every stage reads and writes the same addresses, and gives what it gives without."""
    attention = encoder.layers[0].self_attn
    widths = (encoder.hidden_size, attention.q_size + 2 * attention.kv_size, encoder.hidden_size)
    room = Room(*(torch.full((LENGTH, width), torch.nan) for width in widths))
    found = states(encoder, LENGTH, room)
    assert found.data_ptr() == room.states.data_ptr()
    assert not any(tensor.isnan().any() for tensor in (room.residual, room.qkv, room.states))
    assert torch.equal(found, states(encoder, LENGTH))


@pytest.mark.parametrize("name", ["_windowed", "_attend"])
def test_control_keys_that_a_part_does_not_see_are_missed(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A part that attends to its own tokens alone, as if it were a prompt."""
    whole, stock = states(encoder, LENGTH), bidirectional.rows_attention

    def alone(q: Any, k: Any, v: Any, rows: slice, window: int | None, *others: Any) -> torch.Tensor:
        if (window is None) == (name == "_attend"):
            q, k, v, rows = q[rows], k[rows], v[rows], slice(0, rows.stop - rows.start)
        return stock(q, k, v, rows, window, *others)

    monkeypatch.setattr("plugin.verifier.encoder.passes.rows_attention", alone)
    assert (states(encoder, 64) - whole).abs().max() > 1e-3


def test_no_part_does_more_than_its_rows(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedding, projections, attention and the rest of each layer: every token once, no more than a part at a time."""
    most, done = 64, Counter[str]()

    def counting(owner: Any, name: str, rows_of: Any) -> None:
        stock = getattr(owner, name)

        def counted(*args: Any) -> Any:
            rows = rows_of(*args)
            assert 0 < rows <= most, name
            done[name] += rows
            return stock(*args)

        monkeypatch.setattr(owner, name, counted)

    counting(ScaledEmbedding, "scaled", lambda _, ids: len(ids))
    counting(EncoderAttention, "projected", lambda _, x, positions: len(x))
    counting(EncoderLayer, "rest", lambda _, residual, *others: len(residual))
    counting(bidirectional, "_attend", lambda q, *others: len(q))
    under_way = begun(encoder)
    while under_way.rows_done < under_way.num_rows:
        under_way.advance(min(most, under_way.num_rows - under_way.rows_done))
    layers = len(encoder.layers) * LENGTH
    assert done == {"scaled": LENGTH, "projected": layers, "rest": layers, "_attend": layers}


def test_rows_done_at_once_are_bounded(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    stock = EncoderLayer.rest
    monkeypatch.setattr(
        EncoderLayer, "rest", lambda self, x, *others: seen.append(len(x)) or stock(self, x, *others)
    )
    monkeypatch.setattr(passes, "MOST_ROWS", 128)
    under_way = begun(encoder)
    under_way.advance(under_way.num_rows)
    assert seen == [128, 128, 44] * len(encoder.layers)
