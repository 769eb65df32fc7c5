"""Every reach into vLLM's internals that is not a subclass, one function each.

Each docstring says what stock vLLM 0.32 does, why that is wrong for T5Gemma 2, and what would make the hook
unnecessary. A hook acts for T5Gemma 2 only and leaves every other model as it was. `replace` fails at install time,
naming what is gone, when vLLM no longer has what a hook replaces.
"""

import copy
import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SUPPORTED = "0.32"


class HookError(RuntimeError):
    """vLLM no longer has what a hook replaces."""


def replace(owner: Any, name: str, parameters: tuple[str, ...], make: Callable[[Any], Any]) -> None:
    """Replace `owner.name` by `make(stock)`, once.

    Args:
        owner: a module or class of vLLM.
        name: its function.
        parameters: the names of the function's parameters, in order, that the replacement relies on.
        make: gets the stock function and returns the new one.

    Raises:
        HookError: `owner` has no such function, or one of other parameters.
    """
    where = f"{owner.__name__}.{name}"
    stock = getattr(owner, name, None)
    if stock is None:
        raise HookError(f"vLLM {SUPPORTED} has {where}, this vLLM has not: see plugin/vllm_hooks.py")
    if getattr(stock, "_t5gemma2", False):
        return
    found = tuple(inspect.signature(stock).parameters)
    if found != parameters:
        raise HookError(
            f"{where} takes {found}, but vLLM {SUPPORTED}'s takes {parameters}: see plugin/vllm_hooks.py"
        )
    new = functools.wraps(stock)(make(stock))
    new._t5gemma2 = True  # type: ignore[attr-defined]
    # A class method arrives bound: the replacement is then called without the class.
    setattr(owner, name, staticmethod(new) if inspect.ismethod(stock) else new)


def install() -> None:
    """Install every hook that this process can need. Idempotent."""
    from vllm.platforms import current_platform

    model_config_update()
    plain_prompts_to_the_encoder()
    max_tokens_by_decoder_length()
    speculators_types()
    speculators_method()
    draft_as_model()
    one_cache_group_a_kind()
    v1_runner = current_platform.is_cpu() or os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "0"
    if v1_runner:
        encoder_outputs_in_batch_order()
        block_proposer()
    if current_platform.is_cpu():
        expand_temperatures_on_cpu()


def model_config_update() -> None:
    """vLLM adjusts its configuration per architecture through a table; ours needs the encoder budget and safe switches.

    Unnecessary once vLLM lets a plugin register such a class.
    """
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from plugin import VERIFIER_ARCHITECTURE
    from plugin.verifier.config import T5Gemma2ModelConfig

    MODELS_CONFIG_MAP[VERIFIER_ARCHITECTURE] = T5Gemma2ModelConfig


def plain_prompts_to_the_encoder() -> None:
    """The renderer class of HF tokenizers, replaced by a subclass: see `plugin.verifier.renderer`.

    Written into the registry's table because `register()` warns about every replacement.
    """
    from vllm.renderers.registry import RENDERER_REGISTRY

    if "hf" not in RENDERER_REGISTRY.renderers:
        raise HookError("vLLM's RENDERER_REGISTRY has no renderer 'hf' any more: see plugin/vllm_hooks.py")
    RENDERER_REGISTRY.renderers["hf"] = ("plugin.verifier.renderer", "T5Gemma2Renderer")


def max_tokens_by_decoder_length() -> None:
    """vLLM's OpenAI server cuts max_tokens to max_model_len minus the *encoder's* length (500-token prompt, 100 wanted,
    512 in all: 12 tokens). For T5Gemma 2 the decoder's own prompt counts. Unnecessary once vLLM counts decoder tokens.
    """
    from vllm.entrypoints.serve.engine import serving
    from vllm.renderers.inputs import preprocess

    from plugin.verifier.config import MODEL_TYPE

    def make(stock: Any) -> Any:
        def extract_prompt_len(model_config: Any, prompt: Any) -> int:
            if (
                getattr(model_config.hf_config, "model_type", None) != MODEL_TYPE
                or "decoder_prompt" not in prompt
            ):
                return int(stock(model_config, prompt))
            return len(prompt["decoder_prompt"]["prompt_token_ids"])

        return extract_prompt_len

    replace(preprocess, "extract_prompt_len", ("model_config", "prompt"), make)
    serving.extract_prompt_len = preprocess.extract_prompt_len


def speculators_types() -> None:
    """vLLM's table of Speculators types: DFlash reads ours wrongly, DFlare is unknown (`plugin.drafts.vllm_config`).

    Unnecessary once vLLM's updaters follow the training side (open upstream change 56692 for causality).
    """
    from vllm.transformers_utils.configs.speculators.algos import SUPPORTED_SPECULATORS_TYPES

    from plugin.drafts.vllm_config import ARCHITECTURES, updater

    for family in ARCHITECTURES:
        stock = SUPPORTED_SPECULATORS_TYPES.get(family)
        if not getattr(stock, "_t5gemma2", False):
            update = updater(family, stock)
            update._t5gemma2 = True  # type: ignore[attr-defined]
            SUPPORTED_SPECULATORS_TYPES[family] = update


def speculators_method() -> None:
    """`vllm serve <draft>`: vLLM takes the checkpoint's type as its speculative method. "dflare" is no method, and
    "dspark" is one that the V1 runner refuses; all three of ours run as "dflash", and the model class makes the
    difference.

    Unnecessary once vLLM knows DFlare, and DSpark on every runner.
    """
    from vllm.transformers_utils.configs.speculators.base import SpeculatorsConfig

    from plugin.drafts.vllm_config import ARCHITECTURES, is_ours

    def make(stock: Any) -> Any:
        def build_vllm_speculative_config(config_dict: dict[str, Any]) -> dict[str, Any]:
            speculative: dict[str, Any] = stock(config_dict=config_dict)
            if is_ours(config_dict) and speculative["method"] in ARCHITECTURES:
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
            if verifier != model and verifier.startswith("."):
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
    joined again: the shorter kind is padded instead, as vLLM itself does below that ratio. Fewer block tables are
        cheaper, too.

    Unnecessary once the V1 proposer serves drafts over several groups.
    """
    from vllm.v1.core import kv_cache_utils

    def make(stock: Any) -> Any:
        def _get_kv_cache_groups_uniform_page_size(kv_cache_spec: dict[str, Any]) -> Any:
            groups = stock(kv_cache_spec)
            if not any(name.endswith(".cross_cache") for name in kv_cache_spec):
                return groups
            kinds: dict[Any, list[str]] = {}
            for group in groups:
                kinds.setdefault(group.kv_cache_spec, []).extend(group.layer_names)
            return kv_cache_utils.create_kv_cache_group_specs(kv_cache_spec, list(kinds.values()))

        return _get_kv_cache_groups_uniform_page_size

    replace(kv_cache_utils, "_get_kv_cache_groups_uniform_page_size", ("kv_cache_spec",), make)


def encoder_outputs_in_batch_order() -> None:
    """The V1 runner returns encoder outputs in scheduling order but maps cross slots in batch order. The two differ
    when a preempted request resumes beside new ones, and then requests silently read each other's prompts. V2 sorts by
    itself.

    Unnecessary once `GPUModelRunner._execute_mm_encoder` follows `input_batch.req_ids`.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def make(stock: Any) -> Any:
        def _execute_mm_encoder(self: Any, scheduler_output: Any) -> Any:
            inputs = scheduler_output.scheduled_encoder_inputs
            if self.model_config.is_encoder_decoder and len(inputs) > 1:
                index = self.input_batch.req_id_to_index
                scheduler_output = copy.copy(scheduler_output)
                scheduler_output.scheduled_encoder_inputs = dict(
                    sorted(inputs.items(), key=lambda kv: index[kv[0]])
                )
            return stock(self, scheduler_output)

        return _execute_mm_encoder

    replace(GPUModelRunner, "_execute_mm_encoder", ("self", "scheduler_output"), make)


def expand_temperatures_on_cpu() -> None:
    """The CPU build's stand-in for the expand kernel casts temperatures to int64 and does not copy the result back: as
    soon as one request in a batch samples, all tokens of the batch come out wrong, greedy ones too.

    Unnecessary once `vllm.utils.cpu_triton_utils._expand_kernel_impl` keeps the dtype.
    """
    from vllm.v1.sample import rejection_sampler

    replace(
        rejection_sampler,
        "expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
        lambda stock: expand_batch_to_tokens,
    )


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """`[batch_size]` -> `[num_tokens]`: value r for the tokens of request r, with `replace_from` made `replace_to`.

    Args:
        cu_num_tokens: `[batch_size]`, cumulative tokens, each request's own included.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    expanded = torch.repeat_interleave(x, counts.long(), output_size=num_tokens)
    return torch.where(expanded == replace_from, torch.full_like(expanded, replace_to), expanded)


def block_proposer() -> None:
    """The V1 runner builds its DFlash proposer by the name in its module; ours adds DSpark's sampling.

    Unnecessary once vLLM's V1 runner drives DSpark.
    """
    from vllm.v1.worker import gpu_model_runner

    from plugin.drafts.v1_proposer import BlockProposer

    if not hasattr(gpu_model_runner, "DFlashProposer"):
        raise HookError(
            "vllm.v1.worker.gpu_model_runner has no DFlashProposer any more: see plugin/vllm_hooks.py"
        )
    gpu_model_runner.DFlashProposer = BlockProposer
