"""Hooks into how vLLM reads configurations and lays out caches: every process needs them."""

from pathlib import Path
from typing import Any

from plugin.vllm_hooks.draft_length import FIRST_LENGTH
from plugin.vllm_hooks.hook import replace

SHORT_BLOCK = "short_block"
"""Key of a speculative config: draft K tokens and no more, as vLLM does, instead of the block that was trained."""


FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""Fields of `EngineArgs` -> keys of a speculative config that they stand for."""


def model_config_update() -> None:
    """vLLM adjusts its configuration per architecture through a table; ours needs the encoder budget and safe switches.

    Unnecessary once vLLM lets a plugin register such a class.
    """
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from plugin.drafts.families import VERIFIER_ARCHITECTURE
    from plugin.verifier.config import T5Gemma2ModelConfig

    MODELS_CONFIG_MAP[VERIFIER_ARCHITECTURE] = T5Gemma2ModelConfig


def speculators_types() -> None:
    """vLLM's table of Speculators types: DFlash reads ours wrongly, DFlare is unknown (`plugin.drafts.vllm_config`).

    Unnecessary once vLLM's updaters follow the training side (open upstream change 56692 for causality).
    """
    from vllm.transformers_utils.configs.speculators.algos import SUPPORTED_SPECULATORS_TYPES

    from plugin.drafts.families import FAMILIES
    from plugin.drafts.vllm_config import updater

    for family in FAMILIES:
        stock = SUPPORTED_SPECULATORS_TYPES.get(family)
        if not getattr(stock, "_t5gemma2", False):
            update = updater(family, stock)
            update._t5gemma2 = True  # type: ignore[attr-defined]
            SUPPORTED_SPECULATORS_TYPES[family] = update


def speculators_method() -> None:
    """`vllm serve <draft>`: vLLM takes the checkpoint's type as its speculative method. "dflare" is no method, and
    "dspark" is one that the V1 runner refuses; all three of ours run as "dflash", told apart by their model class.

    Unnecessary once vLLM knows DFlare, and DSpark on every runner.
    """
    from vllm.transformers_utils.configs.speculators.base import SpeculatorsConfig

    from plugin.drafts.families import FAMILIES
    from plugin.drafts.vllm_config import is_ours

    def make(stock: Any) -> Any:
        def build_vllm_speculative_config(config_dict: dict[str, Any]) -> dict[str, Any]:
            speculative: dict[str, Any] = stock(config_dict=config_dict)
            if is_ours(config_dict) and speculative["method"] in FAMILIES:
                speculative["method"] = "dflash"
            return speculative

        return build_vllm_speculative_config

    replace(SpeculatorsConfig, "build_vllm_speculative_config", ("config_dict",), make)


def draft_as_model() -> None:
    """`vllm serve <draft>`: vLLM takes the verifier's name from the draft's config as it stands. A relative name there
    is relative to the draft's folder (the bundled demo's is `../verifier`), not to the server's working directory.
    """
    from vllm.engine import arg_utils

    def make(stock: Any) -> Any:
        def maybe_override_with_speculators(model: str, *args: Any, **kwargs: Any) -> Any:
            verifier, tokenizer, speculative = stock(model, *args, **kwargs)
            if verifier != model and verifier.startswith(".") and Path(model).is_dir():
                verifier = tokenizer = str((Path(model) / verifier).resolve())
            return verifier, tokenizer, speculative

        return maybe_override_with_speculators

    parameters = (
        "model", "tokenizer", "trust_remote_code", "revision", "vllm_speculative_config", "hf_token", "kwargs",
    )  # fmt: skip
    replace(arg_utils, "maybe_override_with_speculators", parameters, make)


def one_cache_group_a_kind() -> None:
    """vLLM splits layers into KV cache groups of equal size; when verifier and draft together have half as many self
    layers again as there are cross layers, it deals the self layers out over several groups, and the V1 proposer
    refuses a draft whose layers are not all in one. For models with our cross caches, groups of the same kind are
    joined again: the shorter kind is padded instead, as vLLM itself does below that ratio, and there are fewer tables.

    Unnecessary once the V1 proposer serves drafts over several groups.
    """
    from plugin.vllm_hooks.cache_planning import planning

    def make(stock: Any) -> Any:
        def _get_kv_cache_groups_uniform_page_size(kv_cache_spec: dict[str, Any]) -> Any:
            groups = stock(kv_cache_spec)
            if not any(name.endswith(".cross_cache") for name in kv_cache_spec):
                return groups
            kinds: dict[Any, list[str]] = {}
            for group in groups:
                kinds.setdefault(group.kv_cache_spec, []).extend(group.layer_names)
            return planning.create_kv_cache_group_specs(kv_cache_spec, list(kinds.values()))

        return _get_kv_cache_groups_uniform_page_size

    replace(planning, "_get_kv_cache_groups_uniform_page_size", ("kv_cache_spec",), make)


def draft_beside_the_verifier() -> None:
    """The speculative config of a draft of ours, which may be the model itself.

    Without a method, or with the draft's family as method, vLLM guesses the method from the path, knows no "dflare",
    and rewrites a "dspark" to DeepSeek-V4's. Ours all run as "dflash".

    vLLM drafts `num_speculative_tokens`, and a block-diffusion draft that is given a shorter block than it was trained
    on is right less often about each position of it. Here the trained block is drafted whatever K is asked for, and K
    of it are verified (`plugin.vllm_hooks.draft_length`); `"short_block": true` has vLLM's way, for comparison. What
    `--spec-model`, `--spec-method` and `--spec-tokens` say vLLM adds to the config in here, so that they are read, too.

    Unnecessary once vLLM reads the method and the block from the draft's own config, and has K beside them.
    """
    from transformers import PreTrainedConfig
    from vllm.engine.arg_utils import EngineArgs

    from plugin.drafts.families import FAMILIES
    from plugin.drafts.vllm_config import is_ours, longest_draft

    def ours(model: Any) -> dict[str, Any]:
        try:
            config, _ = PreTrainedConfig.get_config_dict(model)
        except (OSError, ValueError):
            return {}  # vLLM says what is wrong with it
        return config if is_ours(config) else {}

    def make(stock: Any) -> Any:
        def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
            given, flags = self.speculative_config, {flag: getattr(self, flag) for flag in FLAGS}
            speculative = {key.replace("-", "_"): value for key, value in (given or {}).items()}
            added = {FLAGS[flag]: value for flag, value in flags.items() if value is not None}
            if added.keys() & speculative.keys():
                return stock(self, *args, **kwargs)  # vLLM says what is given twice
            speculative |= added
            known = speculative.get("method") in (None, *FAMILIES) and speculative.get("model")
            config = ours(speculative["model"]) if known else {}
            if not config:
                return stock(self, *args, **kwargs)
            k, short = speculative.get("num_speculative_tokens"), speculative.pop(SHORT_BLOCK, False)
            speculative["method"] = "dflash"
            if k is not None and not short:
                speculative["num_speculative_tokens"] = max(k, longest_draft(config))
            try:
                vars(self).update(dict.fromkeys(FLAGS) | {"speculative_config": speculative})
                created = stock(self, *args, **kwargs)
            finally:
                vars(self).update(flags | {"speculative_config": given})
            if k is not None:
                setattr(created, FIRST_LENGTH, k)
            return created

        return create_speculative_config

    replace(
        EngineArgs,
        "create_speculative_config",
        ("self", "target_model_config", "target_parallel_config"),
        make,
    )
