"""What the parts of an encoder pass cost, and how a pass is cut into them."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from plugin.verifier.encoder.capture import PART_ROWS, PassSizes
from plugin.verifier.encoder.work import ALIGNED_ROWS, LAUNCH_S, PassCosts

HEADS = {"hidden_size": 1152, "head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 1}
LAYERS = 26
WINDOW = 512


def costs(step_tokens=128, **more):
    """Of the published 1B shape."""
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(LAYERS)]
    text = SimpleNamespace(**HEADS, intermediate_size=6912, sliding_window=WINDOW, layer_types=kinds)
    return PassCosts(text, SimpleNamespace(**HEADS, num_hidden_layers=LAYERS), step_tokens, **more)


def parts(costs, length, budget=128):
    """(stage, row, rows, cost) of a pass, step by step."""
    found, row = [], 0
    while row < costs.num_rows(length):
        rows = costs.fit(length, row, budget)
        found.append((*divmod(row, length), rows, costs.rows(length, row, rows)))
        row += rows
    assert row == costs.num_rows(length)
    return found


def test_costs_are_multiplications_over_those_of_all_weights():
    """Against a count of every matrix product, layer by layer."""
    hidden, inner = 1152, 6912
    weights = hidden * 256 * (4 + 1 + 1) + 4 * 256 * hidden + 3 * hidden * inner
    length = 8192
    attention = sum(2 * 4 * 256 * (length if i % 6 == 5 else WINDOW) for i in range(LAYERS))
    want = length * (LAYERS * weights + attention) / (LAYERS * weights)
    made = costs()
    assert made.rows(length, 0, made.num_rows(length)) == pytest.approx(want)
    assert made.cross(length) == pytest.approx(length * 2 * 256 * hidden / weights)
    # At this length a full layer's attention multiplies 0.62 times as often as its weights do.
    full, windowed = (made.rows(length, stage * length, length) for stage in (6, 5))
    assert (full - windowed) * LAYERS / length == pytest.approx(0.625 * (1 - WINDOW / length), rel=1e-2)


@pytest.mark.parametrize("length", [129, 3000, 8192, 32_768])
def test_a_step_does_one_part_and_no_more_than_its_share(length):
    """Where launching takes the host as long as a step may take; parts of a stage are even."""
    found = parts(costs(launch_s=LAUNCH_S), length)
    assert all(cost <= 128 for *_, cost in found)
    assert all(row + rows <= length for _, row, rows, _ in found)
    for (stage, row, rows, _), (next_stage, next_row, next_rows, _) in pairwise(found):
        assert (next_stage, next_row) == ((stage, row + rows) if row + rows < length else (stage + 1, 0))
        assert stage != next_stage or next_rows in (rows, length - next_row)
    least = costs().rows(length, 0, costs().num_rows(length)) / 128
    assert max(least, 1 + LAYERS) <= len(found) < 1.6 * least + 1 + LAYERS


def test_without_launches_to_pay_for_a_step_does_several_parts():
    found = parts(costs(), 200)
    assert len(found) == 2
    assert sum(cost for *_, cost in found) == pytest.approx(200, rel=0.03)


def test_captured_stages_are_done_whole_and_pay_for_their_padding():
    made = costs(captured=PassSizes((256, 4096)), launch_s=LAUNCH_S)
    short, long = parts(made, 200), parts(made, 3000)
    assert all(row == 0 and rows % 200 == 0 for _, row, rows, _ in short)
    assert sum(cost for *_, cost in short) == pytest.approx(256, rel=0.03)
    assert len(short) == 3
    assert [rows for *_, rows, _ in long] == [3000] * (1 + LAYERS)
    assert max(cost for *_, cost in long) > 4096 / LAYERS
    assert parts(made, 5000) == parts(costs(launch_s=LAUNCH_S), 5000)  # beyond the largest


@pytest.mark.parametrize("length", [4097, 5000, 6144, 8192])
def test_captured_parts_of_stages_are_done_whole_and_those_without_tokens_left_out(length):
    """A part costs what it has room for, be it full or not."""
    found = parts(costs(captured=PassSizes((256, 4096), 8192), launch_s=LAUNCH_S), length)
    in_stage = -(-length // PART_ROWS)
    assert all(row % PART_ROWS == 0 for _, row, *_ in found)
    assert all(rows <= PART_ROWS for stage, _, rows, _ in found if stage)
    assert 1 + LAYERS * in_stage - 1 <= len(found) <= (1 + LAYERS) * in_stage
    assert all(cost < 129 for *_, cost in found)
    plain = costs()
    computed = in_stage * PART_ROWS / length * plain.rows(length, 0, plain.num_rows(length))
    assert sum(cost for *_, cost in found) == pytest.approx(computed)


@pytest.mark.parametrize("length", [129, 3001, 8191, 40_001])
def test_parts_that_are_not_captured_begin_where_programs_are_compiled_for(length):
    rows = [row for _, row, *_ in parts(costs(launch_s=LAUNCH_S), length)]
    assert len(rows) > 1 + LAYERS or length == 129
    assert all(row % ALIGNED_ROWS == 0 for row in rows)


def test_the_rest_of_a_pass_beside_what_admits_its_prompt():
    """On a GPU a launch comes on top."""
    last = 26 * 200 + 100
    cheap, dear = costs(), costs(launch_s=LAUNCH_S)
    assert cheap.last(200, last) == pytest.approx(cheap.rows(200, last, 100) + cheap.cross(200))
    assert cheap.last(200, last) < 128 < dear.last(200, last)


def test_one_part_at_least_is_done_whatever_it_costs():
    assert costs().fit(8192, 8192, 1) > 64
    assert costs(1).fit(8192, 8192, 1) == 64


def test_a_rest_is_done_at_once_where_it_may():
    made = costs(launch_s=LAUNCH_S)
    assert made.fit(8192, 5 * 8192 + 100, 32_768) == made.num_rows(8192) - 5 * 8192 - 100
