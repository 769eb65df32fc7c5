"""The references themselves: that they are sensitive to what they are meant to show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.reference.draft_block import DraftReference, aux_states
from tests.reference.greedy import GreedyReference
from tests.reference.prompts import mixed_prompts, prompt_ids
from tests.reference.tiny import BOS, TOKENIZER_SIZE, WINDOW, tiny_tokenizer
from tests.reference.tiny_drafts import SPECS, draft_config, draft_tensors, verifier_table

ANSWER = tuple(prompt_ids(24, 5)[1:])
PROMPT = prompt_ids(30, 4)


def draft_of(name: str, verifier: Path) -> DraftReference:
    table = verifier_table(verifier)
    return DraftReference(draft_config(SPECS[name], verifier), draft_tensors(SPECS[name], table), table)


def test_greedy_is_the_argmax_of_one_pass(reference: GreedyReference) -> None:
    answer = reference.answer(PROMPT, 12, ignore_eos=True)
    logits = reference.logits(PROMPT, [answer.tokens[:-1]])[0]
    assert tuple(logits.argmax(-1).tolist()) == answer.tokens
    top = logits.topk(2).values
    assert torch.allclose(torch.tensor(answer.gaps), top[:, 0] - top[:, 1], atol=1e-3)


def test_greedy_is_cut_behind_the_end_token(reference: GreedyReference) -> None:
    prompt = next(p for p in mixed_prompts() if reference.answer(p, 40).finish_reason == "stop")
    short, long = reference.answer(prompt, 40), reference.answer(prompt, 40, ignore_eos=True)
    assert short.tokens[-1] == reference.eos and reference.eos not in short.tokens[:-1]
    assert long.tokens[: len(short.tokens)] == short.tokens and len(long.tokens) == 40


def test_aux_states_are_the_branch_of_their_layer(reference: GreedyReference) -> None:
    """Adding the branch of the last layer to the residual before it gives the final state."""
    decoder = reference.model.model.decoder
    last = len(decoder.layers) - 1
    seen: dict[str, torch.Tensor] = {}
    hook = decoder.layers[last].register_forward_hook(lambda _m, _i, out: seen.update(layer=out[0]))
    before = decoder.layers[last].pre_feedforward_layernorm.register_forward_pre_hook(
        lambda _m, inputs: seen.update(residual=inputs[0][0])
    )
    aux = aux_states(reference.model, PROMPT, (BOS, *ANSWER), [last, 0])
    hook.remove()
    before.remove()
    assert aux.shape == (1 + len(ANSWER), 2, 64)
    assert torch.equal(aux[:, 1], aux_states(reference.model, PROMPT, (BOS, *ANSWER), [last])[:, 0])
    assert torch.allclose(seen["residual"] + aux[:, 1], seen["layer"], atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_a_padded_context_changes_nothing(name: str, verifier: Path, reference: GreedyReference) -> None:
    """The fit maps the block over padded batches; F11: what lies at or behind the anchor is never seen."""
    draft = draft_of(name, verifier)
    aux = aux_states(reference.model, PROMPT, (BOS, *ANSWER), draft.aux_layers)
    for position in (1, 7, 15):
        visible = torch.arange(len(aux)) < position
        padded = draft.block_hidden(aux, ANSWER[position - 1], 7, visible)
        exact = draft.block_hidden(aux[:position], ANSWER[position - 1], 7)
        assert torch.allclose(padded, exact, atol=1e-4)


@pytest.mark.parametrize("name", SPECS)
def test_proposals_show_every_off_by_one(name: str, verifier: Path, reference: GreedyReference) -> None:
    """A wrong tap, a context one short or the wrong anchor gives other logits in every slot."""
    draft = draft_of(name, verifier)
    taps = draft.aux_layers
    right = aux_states(reference.model, PROMPT, (BOS, *ANSWER), taps)
    shifted = aux_states(
        reference.model, PROMPT, (BOS, *ANSWER), [max(0, i - 1) for i in taps[:-1]] + [taps[-1]]
    )
    want = draft.propose(right[:12], ANSWER[11], 7)
    assert len(want.tokens) == 7 and want.logits.shape == (7, len(draft.head))
    wrongs = [
        draft.propose(shifted[:12], ANSWER[11], 7) if shifted.shape == right.shape else None,
        draft.propose(right[:11], ANSWER[11], 7),
        draft.propose(right[:12], ANSWER[10], 7),
    ]
    for wrong in wrongs:
        if wrong is not None:
            assert (wrong.logits - want.logits).abs().amax(-1).min() > 0.01


def test_draft_ids_are_offsets(verifier: Path) -> None:
    """Target id = i + d2t[i], ascending, as many as t2d marks (B41)."""
    draft = draft_of("dflash", verifier)
    ids = [draft.target_id(i) for i in range(320)]
    assert ids == sorted(set(ids)) == draft.w["t2d"].nonzero().flatten().tolist()
    assert torch.equal(draft.head, verifier_table(verifier)[ids])


def test_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    assert len(tokenizer) == TOKENIZER_SIZE
    text = "Straße, naïve café 👩‍👧 中 60 miles"
    ids = tokenizer(text).input_ids
    assert ids[0] == BOS and tokenizer.decode(ids, skip_special_tokens=True) == text


def test_prompts_cross_the_window() -> None:
    lengths = [len(prompt) for prompt in mixed_prompts()]
    assert len(lengths) == 50 and {1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 1} <= set(lengths)
