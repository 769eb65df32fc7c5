"""The verifier's greedy answers: the same in every batch, and ended where serving ends them."""

from __future__ import annotations

import pytest
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.verifier.greedy import end_ids, greedy_responses


def test_greedy_responses_do_not_depend_on_the_batch(verifier: T5Gemma2ForConditionalGeneration) -> None:
    prompts = [[2, 11, 12, 13, 14, 15, 16, 17], [2, 40], [2, 30, 31, 32]]
    together = greedy_responses(verifier, prompts, max_new_tokens=6, batch_size=3)
    alone = [greedy_responses(verifier, [prompt], 6, 1)[0] for prompt in prompts]
    assert together == alone
    assert all(1 <= len(response) <= 6 and 1 not in response[:-1] for response in together)


def test_an_end_token_of_the_generation_config_ends_a_response(
    verifier: T5Gemma2ForConditionalGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with chat models, whose turns end at a token that the decoder config does not name; padding is not learned."""
    prompts = [[2, 11, 12, 13, 14, 15, 16, 17], [2, 40], [2, 30, 31, 32]]
    whole = greedy_responses(verifier, prompts, max_new_tokens=6, batch_size=3)
    assert end_ids(verifier) == {1}
    turn_end = whole[1][0]
    assert len(whole[1]) > 1 and any(turn_end not in response for response in whole), (
        "nothing would be padded"
    )
    monkeypatch.setattr(verifier.generation_config, "eos_token_id", [1, turn_end])
    assert end_ids(verifier) == {1, turn_end}
    cut = [row[: row.index(turn_end) + 1] if turn_end in row else row for row in whole]
    assert greedy_responses(verifier, prompts, max_new_tokens=6, batch_size=3) == cut
