"""A Speculators checkpoint of ours as vLLM's draft configuration.

vLLM builds the draft's hf config by passing `transformer_layer_config` through an updater of the checkpoint's type. The
stock updaters read our checkpoints wrongly in two ways that never change the output, only the acceptance:

- taps: training taps the post-feedforward norm of layer i for each i in `aux_hidden_state_layer_ids`; vLLM's index L
  counts states *entering* a layer, so layer i's state is L = i + 1 (the stock updater takes L = i);
- causality: training lets the block see itself in both directions in full-attention layers; the stock updater makes
  every layer causal when `sliding_window_non_causal` is false, as it always is in these checkpoints.
"""

from collections.abc import Callable
from typing import Any

from plugin.drafts.families import FAMILIES, VERIFIER_ARCHITECTURE

Updater = Callable[..., None]


def is_ours(config: dict[str, Any]) -> bool:
    """Whether a Speculators config is a draft for T5Gemma 2."""
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    return VERIFIER_ARCHITECTURE in (verifier.get("architectures") or [])


def longest_draft(config: dict[str, Any]) -> int:
    """Tokens that a whole block of a Speculators config of ours drafts: the anchor's slot only if it predicts."""
    return int(config["block_size"]) - (0 if config.get("sample_from_anchor", False) else 1)


def update_draft_config(family: str, config_dict: dict[str, Any], pre_trained_config: dict[str, Any]) -> None:
    """Complete `pre_trained_config` (the checkpoint's `transformer_layer_config`) in place, as vLLM's updaters do."""
    aux_ids = config_dict["aux_hidden_state_layer_ids"]
    pre_trained_config["architectures"] = [FAMILIES[family].architecture]
    pre_trained_config["draft_vocab_size"] = config_dict.get("draft_vocab_size")
    if config_dict.get("target_hidden_size") is not None:
        pre_trained_config["target_hidden_size"] = config_dict["target_hidden_size"]
    pre_trained_config["eagle_aux_hidden_state_layer_ids"] = [i + 1 for i in aux_ids]
    dflash: dict[str, Any] = {
        "mask_token_id": config_dict["mask_token_id"],
        "target_layer_ids": list(aux_ids),
    }
    anchor = config_dict.get("sample_from_anchor", False)
    # vLLM's V2 DFlash refuses the key here, while its DSpark reads the one beside it.
    (pre_trained_config if family == "dspark" else dflash)["sample_from_anchor"] = anchor
    layer_types = pre_trained_config.get("layer_types") or []
    if "sliding_attention" not in layer_types or config_dict.get("sliding_window_non_causal"):
        dflash["causal"] = False
    # else vLLM's own default holds, which is the trained one: sliding layers causal, full layers not.
    pre_trained_config["dflash_config"] = dflash
    for key, default in FAMILIES[family].own_keys.items():
        pre_trained_config[key] = config_dict.get(key, default)
    if family == "dflare":
        # What travels from the verifier to the draft is all taps side by side, and vLLM sizes its buffers by this key.
        pre_trained_config["draft_hidden_size"] = pre_trained_config["hidden_size"]
        pre_trained_config["hidden_size"] *= len(aux_ids)


def updater(family: str, stock: Updater | None) -> Updater:
    """Our updater for T5Gemma 2 drafts of `family`; any other checkpoint goes to vLLM's own, if it has one."""

    def update(config_dict: dict[str, Any], pre_trained_config: dict[str, Any]) -> None:
        if is_ours(config_dict):
            update_draft_config(family, config_dict, pre_trained_config)
        elif stock is not None:
            stock(config_dict=config_dict, pre_trained_config=pre_trained_config)
        else:
            raise ValueError(
                f"speculators_model_type is {family!r}, which vLLM knows for {VERIFIER_ARCHITECTURE} only, but "
                "speculators_config.verifier.architectures does not name it"
            )

    return update
