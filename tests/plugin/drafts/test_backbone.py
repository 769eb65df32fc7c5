"""Context keys of every draft layer are normed with that layer's own weight (O8)."""

from types import SimpleNamespace

import pytest
import torch

from plugin.drafts import backbone
from plugin.drafts.backbone import DraftBackbone, DraftLayer, DraftModel, normalize_context_k, shared_slots
from plugin.projection.few_tokens import Deferred


def context_keys():
    torch.manual_seed(0)
    return torch.randn(3, 5, 2, 8), torch.rand(3, 8) + 0.5


def test_each_layer_uses_its_own_weight():
    keys, weights = context_keys()
    got = normalize_context_k(keys, weights, 1e-6)
    for layer in range(3):
        for token in range(5):
            for head in range(2):
                x = keys[layer, token, head]
                want = x / (x.square().mean() + 1e-6).sqrt() * weights[layer]
                torch.testing.assert_close(got[layer, token, head], want)


def test_control_the_stock_kernel_uses_layer_0s_weight_on_the_cpu():
    """Once this fails, the override in `DraftBackbone` can go."""
    from vllm import _custom_ops as ops

    keys, weights = context_keys()
    got = torch.empty_like(keys)
    ops.rms_norm(got, keys, weights, 1e-6)
    want = normalize_context_k(keys, weights, 1e-6)
    torch.testing.assert_close(got[0], want[0])
    assert (got[1:] - want[1:]).abs().max() > 0.1


def test_slots_given_for_each_layer_are_shared_when_they_are_one_buffers():
    buffers = torch.arange(10).view(2, 5)
    assert shared_slots(buffers[0]) is not None
    assert torch.equal(shared_slots([buffers[0][:3], buffers[0][:3]]), buffers[0][:3])
    assert shared_slots([buffers[0], buffers[1]]) is None
    assert shared_slots([None, buffers[1]]) is None
    assert shared_slots(None) is None


@pytest.mark.parametrize("plain", [True, False])
def test_taps_are_projected_into_the_rows_given(monkeypatch, plain):
    torch.manual_seed(0)
    fc = torch.nn.Linear(12, 4, bias=False)
    fc.weight.requires_grad_(False)
    monkeypatch.setattr("plugin.projection.few_tokens.plain", lambda layer: plain)
    draft = SimpleNamespace(model=SimpleNamespace(fc=fc), combine_hidden_states=fc)
    taps, rows = torch.randn(6, 12), torch.full((6, 4), 7.0)
    DraftModel.project_taps(draft, taps[1:4], rows[1:4])
    torch.testing.assert_close(rows[1:4], taps[1:4] @ fc.weight.T)
    assert (rows[[0, 4, 5]] == 7.0).all()


@pytest.mark.parametrize("layers", [None, 3])
def test_the_context_is_mixed_and_normed_on_the_cpu(layers):
    torch.manual_seed(0)
    taps, width = (1, 32) if layers is None else (2, 32)
    backbone = SimpleNamespace(_hidden_norm_weight=torch.rand(width), _rms_norm_eps=1e-6)
    states = torch.randn(5, taps * width)
    fusion = None if layers is None else torch.rand(layers, taps)
    got = DraftBackbone._norm_context(backbone, states, fusion)
    for layer in range(layers or 1):
        x = states
        if fusion is not None:
            x = fusion[layer, 0] * states[:, :width] + fusion[layer, 1] * states[:, width:]
        want = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * backbone._hidden_norm_weight
        torch.testing.assert_close(got[layer], want)


class Norm:
    """A draft's norm as its layers call it."""

    def __init__(self, width):
        self.weight = torch.rand(width) + 0.5

    def __call__(self, x, residual=None):
        made = x.x @ x.weight.T if isinstance(x, Deferred) else x
        total = made if residual is None else residual + made
        normed = total / (total.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.weight
        return normed if residual is None else (normed, total)


def test_a_drafts_layers_leave_their_last_projections_to_the_next_norm(monkeypatch):
    torch.manual_seed(0)
    width, inner = 8, 16
    monkeypatch.setattr("plugin.projection.few_tokens.plain", lambda layer: True)
    monkeypatch.setattr(backbone, "block_attention", lambda attn, positions, x: Deferred(x, attn))

    def weight(*shape):
        return torch.nn.Parameter(torch.randn(shape), requires_grad=False)

    layers = [
        SimpleNamespace(
            fused=True,
            self_attn=weight(width, width),
            input_layernorm=Norm(width),
            post_attention_layernorm=Norm(width),
            mlp=SimpleNamespace(
                gate_up_proj=SimpleNamespace(weight=weight(2 * inner, width)),
                down_proj=SimpleNamespace(weight=weight(width, inner)),
            ),
        )
        for _ in range(2)
    ]
    x = torch.randn(3, width)
    states, residual = x, None
    for layer in layers:
        states, residual = DraftLayer.forward(layer, None, states, residual)
        assert isinstance(states, Deferred)
    last = Norm(width)
    got, _ = last(states, residual)

    want = x
    for layer in layers:
        want = want + layer.input_layernorm(want) @ layer.self_attn.T
        gate, up = (layer.post_attention_layernorm(want) @ layer.mlp.gate_up_proj.weight.T).chunk(2, dim=-1)
        want = want + (torch.nn.functional.silu(gate) * up) @ layer.mlp.down_proj.weight.T
    torch.testing.assert_close(got, last(want), rtol=1e-4, atol=1e-4)
