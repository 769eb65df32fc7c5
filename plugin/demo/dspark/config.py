"""Lets transformers read this folder's config.json with remote code allowed."""

from transformers import PreTrainedConfig


class DSparkSpeculatorConfig(PreTrainedConfig):
    """A dspark draft in Speculators format; its fields are those of config.json."""

    model_type = "speculator_model"
    speculators_model_type = "dspark"
