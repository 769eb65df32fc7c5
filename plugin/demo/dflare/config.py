"""Lets transformers read this folder's config.json with remote code allowed."""

from transformers import PreTrainedConfig


class DFlareSpeculatorConfig(PreTrainedConfig):
    """A dflare draft in Speculators format; its fields are those of config.json."""

    model_type = "speculator_model"
    speculators_model_type = "dflare"
