"""Which of the verifier's states a draft is given."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import T5Gemma2ForConditionalGeneration

from plugin.training.verifier.extraction import Extractor


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    prompts, tokens = torch.randint(8, 60, (2, 9)), torch.randint(8, 60, (2, 12))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    return prompts, mask, tokens


def test_aux_is_the_normed_mlp_branch_of_the_layer_itself(verifier: T5Gemma2ForConditionalGeneration) -> None:
    """The state of id i is what layer i adds to the residual stream last: the stream after minus the one before."""
    prompts, mask, tokens = _inputs()
    extractor = Extractor(verifier, (0, 2, 5))
    states = extractor(prompts, mask, tokens)
    assert states.aux.shape == (2, 12, 3, 32)
    seen: list[torch.Tensor] = []
    handles = [
        layer.pre_feedforward_layernorm.register_forward_pre_hook(
            lambda _module, inputs: seen.append(inputs[0])
        )
        for layer in verifier.get_decoder().layers
    ]
    output = verifier(
        input_ids=prompts, attention_mask=mask.long(), decoder_input_ids=tokens, output_hidden_states=True
    )
    for handle in handles:
        handle.remove()
    for place, layer in enumerate((0, 2)):
        branch = output.decoder_hidden_states[layer + 1] - seen[layer]
        assert (states.aux[:, :, place] - branch).abs().max() < 1e-5
    assert (extractor.logits(states.states) - output.logits).abs().max() < 1e-5


def test_teacher_logits_are_those_of_transformers(verifier: T5Gemma2ForConditionalGeneration) -> None:
    """Over the draft vocabulary, with and without soft-capping, and the likeliest token over all, taken in chunks."""
    prompts, mask, tokens = _inputs()
    extractor = Extractor(verifier, (1,))
    states = extractor(prompts, mask, tokens).states
    t2d = torch.arange(64) % 3 == 0
    decoder = verifier.config.decoder
    try:
        for cap in (None, 0.5):
            decoder.final_logit_softcapping = cap
            whole = verifier(
                input_ids=prompts, attention_mask=mask.long(), decoder_input_ids=tokens, use_cache=False
            ).logits
            assert cap is None or whole.abs().max() <= cap
            assert (extractor.logits(states, t2d) - whole[..., t2d]).abs().max() < 1e-5
            assert torch.equal(extractor.greedy_tokens(states, chunk=5), whole.argmax(dim=-1))
    finally:
        decoder.final_logit_softcapping = None


def test_other_attention_implementations_are_refused(verifier: T5Gemma2ForConditionalGeneration) -> None:
    other = copy.deepcopy(verifier)
    other.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="attention implementation is 'eager'"):
        Extractor(other, (1,))


def test_later_tokens_do_not_reach_earlier_states(verifier: T5Gemma2ForConditionalGeneration) -> None:
    prompts, mask, tokens = _inputs()
    extractor = Extractor(verifier, (1, 4))
    before = extractor(prompts, mask, tokens)
    tokens = tokens.clone()
    tokens[:, 7:] = 9
    after = extractor(prompts, mask, tokens)
    assert (after.aux[:, :7] - before.aux[:, :7]).abs().max() < 1e-5
    assert (after.aux[:, 7:] - before.aux[:, 7:]).abs().max() > 1e-3


def test_no_hook_is_left_behind(verifier: T5Gemma2ForConditionalGeneration) -> None:
    Extractor(verifier, (1,))(*_inputs())
    assert not verifier.get_decoder().layers[1].post_feedforward_layernorm._forward_hooks


@pytest.mark.parametrize(
    ("ids", "message"), [((6,), "6 is not one of the 6"), ((3, 1), "not strictly ascending")]
)
def test_bad_layers_are_refused(
    verifier: T5Gemma2ForConditionalGeneration, ids: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Extractor(verifier, ids)
