"""Which taps leave the decoder, and in what form."""

from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.models.interfaces import EagleModelMixin

from plugin.verifier import decoder

TOKENS, HIDDEN = 3, 4


class Layer:
    """Its branch is full of its number."""

    def __init__(self, number):
        self.number, self.pre_self_attn_layernorm = number, lambda x: x

    def __call__(self, positions, hidden_states, residual, next_norm, encoder_states):
        return hidden_states, residual, torch.full((TOKENS, HIDDEN), float(self.number))


@pytest.fixture
def run(monkeypatch):
    def run(layers, on_cuda):
        monkeypatch.setattr(decoder, "current_platform", SimpleNamespace(is_cuda=lambda: on_cuda))
        made = SimpleNamespace(
            embed_tokens=SimpleNamespace(scaled=lambda ids: torch.zeros(TOKENS, HIDDEN)),
            layers=[Layer(i) for i in range(4)],
            norm=None,
            aux_hidden_state_layers=layers,
        )
        made._maybe_add_hidden_state = lambda *args: EagleModelMixin._maybe_add_hidden_state(made, *args)
        return decoder.Decoder.forward(made, torch.arange(TOKENS), torch.arange(TOKENS))

    return run


def test_the_v1_runner_gets_each_tap(run):
    _, taps = run((1, 4), on_cuda=False)
    assert [(tuple(tap.shape), tap.unique().tolist()) for tap in taps] == [((3, 4), [0.0]), ((3, 4), [3.0])]


def test_the_v2_runner_gets_one_tensor_of_all_side_by_side(run):
    _, (taps,) = run((1, 4), on_cuda=True)
    assert taps[0].tolist() == [0.0] * HIDDEN + [3.0] * HIDDEN
    assert taps.shape == (TOKENS, 2 * HIDDEN)


@pytest.mark.parametrize("on_cuda", [False, True])
def test_without_a_draft_there_are_none(run, on_cuda):
    assert isinstance(run((), on_cuda), torch.Tensor)
