"""Accuracies and acceptance."""

from __future__ import annotations

import torch

from plugin.training.run.metrics import Acceptance, Tally, leading_matches


def test_acceptance_of_known_runs_f12() -> None:
    """Leading matches of 3, 2, 1, 0 at K = 7: means and rates as counted by hand (F12)."""
    found = Acceptance.from_runs(torch.tensor([3, 2, 1, 0]), draft_length=7)
    assert found.mean_acceptance_length == 2.5
    assert found.acceptance_rate == 6 / 28
    assert (found.drafts, found.accepted_tokens) == (4, 6)
    assert found.per_position == (0.75, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0)


def test_a_match_after_the_first_miss_does_not_count_f12() -> None:
    correct = torch.tensor(
        [[1, 1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1]], dtype=torch.bool
    )
    assert leading_matches(correct).tolist() == [3, 2, 0]


def test_without_drafts_there_are_no_rates() -> None:
    found = Acceptance.from_runs(torch.tensor([], dtype=torch.long), 7)
    assert found.acceptance_rate is None and found.per_position is None and found.drafts == 0


def test_tally_excludes_padding_blocks_f12() -> None:
    """Of two blocks one counts; its runs are 1 of 2 in the first batch, 0 in the second (F12)."""
    tally = Tally(block_size=3)
    correct = torch.tensor([[[True, True, False], [True, True, True]]])
    mask = torch.tensor([[[False, True, True], [False, False, False]]])
    tally.add({"loss": torch.tensor(2.0)}, correct, mask)
    tally.add({"loss": torch.tensor(4.0)}, ~correct, mask)
    assert tally.metrics() == {
        "loss_epoch": 3.0,
        "full_acc_epoch": 0.5,
        "eal_epoch": 1.5,
        "position_1_acc_epoch": 0.5,
        "position_2_acc_epoch": 0.5,
    }


def test_tally_weights_losses_by_slots() -> None:
    tally = Tally(block_size=3)
    for loss, mask in ((6.0, [False, True, False]), (3.0, [False, True, True])):
        tally.add({"loss": torch.tensor(loss)}, torch.ones(1, 1, 3).bool(), torch.tensor([[mask]]))
    assert tally.metrics()["loss_epoch"] == 4.0


def test_tally_of_nothing_counted_knows_nothing() -> None:
    tally = Tally(block_size=3)
    nothing = torch.zeros(1, 1, 3, dtype=torch.bool)
    tally.add({"loss": torch.tensor(0.0)}, nothing, nothing)
    assert tally.metrics() == {}, "a loss of 0 would be the best of all epochs"
    assert Tally(block_size=3).metrics() == {}
