"""What the engine must know about a T5Gemma 2 configuration, and the one place that makes vLLM's own settings safe for
it.

Encoder and decoder have separate budgets: a request may bring up to `max_source_positions` encoder tokens, whatever the
decoder's `max_model_len` is. vLLM knows one length only, so the encoder's is carried on the hf config, where vLLM's V2
runner looks for it too.
"""

from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.model_executor.models.config import VerifyAndUpdateConfig

from plugin.verifier.encoder.capture import capture_encoder

if TYPE_CHECKING:
    from transformers import T5Gemma2Config
    from vllm.config import VllmConfig

logger = init_logger(__name__)

MODEL_TYPE = "t5gemma2"
ENCODER_BUDGET_KEY = "max_source_positions"
"""Attribute of the hf config: encoder tokens allowed in one request. Set it with `--hf-overrides`, or leave it
unset."""

ENCODER_CACHE_MANAGER = "plugin.verifier.encoder.cache.PromptCacheManager"
"""vLLM's `ec_manager_config.encoder_cache_manager_cls`. Its `manager_config` may hold `cache_bytes` (encoder states
held from step to step, 0 for none) and `busy_step_tokens` (encoder tokens of a step beside running requests)."""


def decoder_start_token_id(config: "T5Gemma2Config") -> int:
    """The token the decoder starts with: `decoder_start_token_id`, else the decoder's BOS, as transformers does."""
    start = getattr(config, "decoder_start_token_id", None)
    if start is None:
        start = config.decoder.bos_token_id
    if start is None:
        raise ValueError("config.json: neither decoder_start_token_id nor decoder.bos_token_id is set")
    return int(start)


def max_encoder_len(config: "T5Gemma2Config", max_model_len: int) -> int:
    """Encoder tokens allowed in one request: the key set by the user, else `max_model_len` within the encoder's
    positions."""
    limit = getattr(config, ENCODER_BUDGET_KEY, None)
    if limit is None:
        limit = min(max_model_len, config.encoder.text_config.max_position_embeddings)
    return int(limit)


def check_shared_sizes(config: Any) -> None:
    """Refuse configurations that the decoder's kernels would get silently wrong.

    Raises:
        ValueError: encoder and decoder differ in width or vocabulary (the k/v projections and the embedding are
            shared).
    """
    encoder, decoder = config.encoder.text_config, config.decoder
    for key in ("hidden_size", "vocab_size"):
        left, right = getattr(encoder, key), getattr(decoder, key)
        if left != right:
            raise ValueError(f"config.json: encoder.text_config.{key} is {left} but decoder.{key} is {right}")


def check_served_precision(vllm_config: "VllmConfig") -> None:
    """Refuse what vLLM accepts by its flags and this model would get silently wrong.

    Raises:
        ValueError: float16 (Gemma's activations overflow it), quantisation (no layer here reads a quantisation config),
            or FlashInfer (its metadata holds no block tables and lengths).
    """
    import torch

    model = vllm_config.model_config
    if model.dtype == torch.float16:
        raise ValueError("dtype is float16, which Gemma's activations overflow; use bfloat16 or float32")
    if model.quantization is not None:
        raise ValueError(f"quantization is {model.quantization}: T5Gemma 2 is served unquantised")
    backend = getattr(vllm_config.attention_config.backend, "name", None)
    if backend not in (None, "FLASH_ATTN", "TRITON_ATTN", "CPU_ATTN"):
        raise ValueError(f"attention backend is {backend}; T5Gemma 2 needs FLASH_ATTN or TRITON_ATTN")


def check_draft_layers(vllm_config: "VllmConfig") -> None:
    """Refuse a draft of which some layers slide and others do not where the V1 runner is to serve it.

    Raises:
        ValueError: it has two kinds of layers, which vLLM's V1 proposer refuses while it builds the draft.
    """
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is None or vllm_config.use_v2_model_runner:
        return
    draft = speculative.draft_model_config
    kinds = set(getattr(draft.hf_config, "layer_types", None) or ())
    if len(kinds) > 1:
        raise ValueError(
            f"{draft.model}/config.json: transformer_layer_config.layer_types mixes {' and '.join(sorted(kinds))}, "
            "which needs vLLM's V2 model runner (CUDA); here V1 serves"
        )


def require_fast_serving(vllm_config: "VllmConfig") -> None:
    """On CUDA: refuse the V1 runner, and have vLLM refuse what would switch asynchronous scheduling off by itself.

    vLLM decides on asynchronous scheduling after this, turning it off with a warning where something stands in its way,
    unless it was asked for.

    Raises:
        ValueError: the V1 model runner, which knows nothing of encoder K/V that are in their pages before the decoder.
    """
    if not vllm_config.use_v2_model_runner:
        raise ValueError(
            "T5Gemma 2 on CUDA needs vLLM's V2 model runner: unset VLLM_USE_V2_MODEL_RUNNER, or leave out what V2 does "
            "not support (vLLM's warning above names it)"
        )
    scheduler = vllm_config.scheduler_config
    if scheduler.async_scheduling is None:
        scheduler.async_scheduling = True
    elif not scheduler.async_scheduling:
        logger.warning("Asynchronous scheduling is switched off: the GPU waits for the host in every step.")


class T5Gemma2ModelConfig(VerifyAndUpdateConfig):
    """vLLM calls this once, before the engine is built (`MODELS_CONFIG_MAP`)."""

    @staticmethod
    def verify_and_update_config(vllm_config: "VllmConfig") -> None:
        """Fix the encoder budget and switch off what vLLM offers but cannot do for this model.

        Raises:
            ValueError: an encoder budget that one engine step cannot hold, a parallel mode nobody has validated, or a
                model runner that does not serve this model.
        """
        from vllm.platforms import current_platform

        model_config, scheduler = vllm_config.model_config, vllm_config.scheduler_config
        config = model_config.hf_config
        check_shared_sizes(config)
        budget = max_encoder_len(config, model_config.max_model_len)
        if budget < 1:
            raise ValueError(f"{ENCODER_BUDGET_KEY} is {budget}: the encoder needs at least one token")
        if budget > scheduler.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens is {scheduler.max_num_batched_tokens}, less than the {budget} encoder tokens "
                f"that one request may bring ({ENCODER_BUDGET_KEY}); the encoder runs a prompt in one step"
            )
        positions = config.encoder.text_config.max_position_embeddings
        if budget > positions:
            raise ValueError(
                f"{ENCODER_BUDGET_KEY} is {budget}, but encoder.text_config.max_position_embeddings is {positions}"
            )
        setattr(config, ENCODER_BUDGET_KEY, budget)
        config.decoder_start_token_id = decoder_start_token_id(config)  # else vLLM warns that it guesses
        parallel = vllm_config.parallel_config
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            if (size := getattr(parallel, name)) > 1:
                raise ValueError(
                    f"{name} is {size}: T5Gemma 2 is served on one GPU an engine; use data parallelism"
                )
        check_served_precision(vllm_config)
        check_draft_layers(vllm_config)
        if current_platform.is_cuda():
            require_fast_serving(vllm_config)
        # vLLM leaves an explicit enable_prefix_caching=True standing and dies at the first request:
        # its manager of cross blocks finds none again (CrossAttentionManager).
        if vllm_config.cache_config.enable_prefix_caching:
            logger.warning("Prefix caching does not exist for encoder-decoder models; switching it off.")
            vllm_config.cache_config.enable_prefix_caching = False
        # Encoder prompts are passed on as ids, never cached: a processor cache would only hold memory.
        if model_config.multimodal_config is not None:
            model_config.multimodal_config.mm_processor_cache_gb = 0
        # vLLM's own manager for encoder-decoder models keeps no states, and counts its free room wrongly.
        vllm_config.ec_manager_config.encoder_cache_manager_cls = ENCODER_CACHE_MANAGER
        capture_encoder(vllm_config)
