"""A Speculators config as vLLM reads it through our updater: taps, causality, and who else's drafts stay vLLM's own."""

import pytest

import plugin
from plugin.drafts.vllm_config import update_draft_config


def checkpoint(**changes):
    config = {
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [2, 7, 13],
        "mask_token_id": 4,
        "draft_vocab_size": 100,
        "block_size": 8,
        "sliding_window_non_causal": False,
        "speculators_config": {
            "verifier": {"architectures": ["T5Gemma2ForConditionalGeneration"], "name_or_path": "v"}
        },
    }
    return config | changes


def updated(layer_types, **changes):
    layers = {"layer_types": layer_types}
    update_draft_config("dflash", checkpoint(**changes), layers)
    return layers


def test_taps_are_the_outputs_of_the_named_layers():
    """Training taps layer i; vLLM's index L is the state entering layer L, so L = i + 1."""
    got = updated(["full_attention"])
    assert got["eagle_aux_hidden_state_layer_ids"] == [3, 8, 14]
    assert got["dflash_config"]["target_layer_ids"] == [2, 7, 13]


@pytest.mark.parametrize(
    ("layer_types", "non_causal", "causal"),
    [
        (["full_attention"] * 2, False, [False, False]),
        (["full_attention"] * 2, True, [False, False]),
        (["sliding_attention"] * 2, False, [True, True]),
        (["sliding_attention"] * 2, True, [False, False]),
        (["sliding_attention", "full_attention"], False, [True, False]),
    ],
)
def test_full_layers_are_bidirectional_and_sliding_ones_causal_unless_told(layer_types, non_causal, causal):
    """Causality as vLLM's own resolver reads it (O11)."""
    from types import SimpleNamespace

    from vllm.model_executor.models.qwen3_dflash import _dflash_layer_causal

    got = SimpleNamespace(**updated(layer_types, sliding_window_non_causal=non_causal))
    assert [_dflash_layer_causal(got, i) for i in range(len(layer_types))] == causal


def test_control_the_stock_updater_is_causal_and_taps_one_layer_early():
    """Negative control: once this fails, ask whether our updater is still needed (O11)."""
    from vllm.transformers_utils.configs.speculators.algos import update_dflash

    layers = {"layer_types": ["full_attention"]}
    update_dflash(config_dict=checkpoint(), pre_trained_config=layers)
    assert layers["dflash_config"]["causal"] is True
    assert layers["eagle_aux_hidden_state_layer_ids"] == [2, 7, 13]


def test_other_verifiers_keep_vllms_own_updater():
    from vllm.transformers_utils.configs.speculators.algos import SUPPORTED_SPECULATORS_TYPES

    plugin.register()
    layers = {"layer_types": ["full_attention"]}
    other = checkpoint(
        speculators_config={"verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "v"}}
    )
    SUPPORTED_SPECULATORS_TYPES["dflash"](config_dict=other, pre_trained_config=layers)
    assert layers["architectures"] == ["DFlashDraftModel"]
