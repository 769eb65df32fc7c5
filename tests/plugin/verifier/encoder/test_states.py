"""The worker's side of the encoder's cache: what is encoded, what is held, and a pass in parts."""

from types import SimpleNamespace

import pytest
import torch

from plugin.verifier.encoder.states import EncoderStates, joined
from plugin.verifier.encoder.work import EncoderWork


class Pass:
    """Three rows; its states are the ids."""

    num_rows, rows_done = 3, 0

    def __init__(self, ids):
        self.ids = ids

    @property
    def states(self):
        if self.rows_done < self.num_rows:
            raise RuntimeError("not done")
        return self.ids[:, None].float()

    def advance(self, num_rows):
        self.rows_done += num_rows


@pytest.fixture
def made():
    calls = []

    def encode(prompts):
        calls.append([len(p) for p in prompts])
        return torch.cat(prompts)[:, None].float().split([len(p) for p in prompts])

    return SimpleNamespace(
        calls=calls,
        keeping=EncoderStates({}, encode, Pass, keep=True),
        passing=EncoderStates({}, encode, Pass, keep=False),
    )


A, B, C = ((name, torch.arange(n, 2 * n)) for name, n in (("a", 3), ("b", 4), ("c", 5)))


def ids_of(states):
    return [s[:, 0].int().tolist() for s in states]


def test_equal_prompts_are_encoded_once_and_held(made):
    assert ids_of(made.keeping.of([A, B, A])) == [[3, 4, 5], [4, 5, 6, 7], [3, 4, 5]]
    assert ids_of(made.keeping.of([B, C])) == [[4, 5, 6, 7], [5, 6, 7, 8, 9]]
    assert ids_of(made.keeping.of([A])) == [[3, 4, 5]]
    assert made.calls == [[3, 4], [5]]
    for states in made.keeping.held.values():
        assert states.untyped_storage().nbytes() == states.nbytes  # no part of a batch's


def test_what_is_held_outlives_the_buffer_that_it_comes_from():
    """A prompt may fill the whole of a graph's buffer."""
    buffer = torch.zeros(4, 1)

    def encode(prompts):
        (ids,) = prompts
        buffer[: len(ids)] = ids[:, None].float()
        return [buffer[: len(ids)]]

    states = EncoderStates({}, encode, Pass, keep=True)
    for prompt, want in ((B, [4, 5, 6, 7]), (A, [3, 4, 5]), (B, [4, 5, 6, 7])):
        assert ids_of(states.of([prompt])) == [want]
    assert ids_of([states.held["b"]]) == [[4, 5, 6, 7]]


def test_states_that_lie_one_behind_the_other_are_not_copied():
    flat = torch.arange(24.0).view(8, 3)
    parts = list(flat.split([2, 5, 1]))
    assert joined(parts).data_ptr() == flat.data_ptr()
    assert torch.equal(joined(parts), flat)
    assert torch.equal(joined(parts[1:2]), flat[2:7])
    for others in (parts[::-1], [parts[0], parts[2]], [parts[0], parts[0]], [parts[0], parts[1].clone()]):
        assert torch.equal(joined(others), torch.cat(others))
        assert joined(others).data_ptr() != others[0].data_ptr()


def test_without_a_cache_nothing_is_held(made):
    assert ids_of(made.passing.of([A, B, A])) == [[3, 4, 5], [4, 5, 6, 7], [3, 4, 5]]
    made.passing.of([A])
    assert made.calls == [[3, 4], [3]]
    assert made.passing.held == {}


@pytest.mark.parametrize("which", ["keeping", "passing"])
def test_a_pass_in_parts_leaves_its_states_to_who_asks_for_them(made, which):
    states = getattr(made, which)
    states.advance(EncoderWork("a", A[1], 0, 2))
    states.advance(None)
    states.advance(EncoderWork("a", None, 2, 1))
    states.advance(None)  # done, and not admitted yet
    assert states.held == {}
    assert ids_of(states.of([B, A])) == [[4, 5, 6, 7], [3, 4, 5]]
    assert made.calls == [[4]]
    assert ids_of(states.of([A])) == [[3, 4, 5]]  # until the scheduler frees them
    assert made.calls == [[4]]


@pytest.mark.parametrize("rows", [2, 3])
def test_a_pass_that_nobody_waits_for_goes(made, rows):
    made.keeping.advance(EncoderWork("a", A[1], 0, rows))
    made.keeping.advance(EncoderWork(None))
    with pytest.raises(RuntimeError, match="no encoder pass at row 2 of prompt a"):
        made.keeping.advance(EncoderWork("a", None, 2, 1))
    assert made.keeping.held == {}
    made.keeping.of([A])
    assert made.calls == [[3]]


def test_parts_out_of_order_are_refused(made):
    made.keeping.advance(EncoderWork("a", A[1], 0, 1))
    with pytest.raises(RuntimeError, match="row 2"):
        made.keeping.advance(EncoderWork("a", None, 2, 1))
    with pytest.raises(RuntimeError, match="prompt b"):
        made.keeping.advance(EncoderWork("b", None, 1, 1))


def test_a_pass_that_is_not_done_is_no_answer(made):
    made.keeping.advance(EncoderWork("a", A[1], 0, 2))
    with pytest.raises(RuntimeError, match="not done"):
        made.keeping.of([A])
