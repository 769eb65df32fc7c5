"""The encoder budget, what is refused before an engine is built, and what is switched off."""

from types import SimpleNamespace

import pytest
import torch
from transformers import T5Gemma2Config

from plugin.verifier.config import (
    T5Gemma2ModelConfig,
    decoder_start_token_id,
    max_encoder_len,
    require_fast_serving,
)


def config(**changes) -> T5Gemma2Config:
    text = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
    }
    made = T5Gemma2Config(encoder={"text_config": dict(text)}, decoder=dict(text))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def engine(
    hf_config,
    *,
    max_model_len=64,
    batched=256,
    prefix_caching=False,
    dtype=torch.float32,
    quantization=None,
    backend=None,
    **parallel,
):
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1} | parallel
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=hf_config,
            dtype=dtype,
            quantization=quantization,
            max_model_len=max_model_len,
            multimodal_config=SimpleNamespace(mm_processor_cache_gb=4),
            enforce_eager=False,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=batched, max_num_seqs=8, async_scheduling=None
        ),
        use_v2_model_runner=True,
        ec_manager_config=SimpleNamespace(encoder_cache_manager_cls=None, manager_config={}),
        compilation_config=SimpleNamespace(
            cudagraph_mode=None,
            cudagraph_mm_encoder=False,
            encoder_cudagraph_token_budgets=[],
            encoder_cudagraph_max_vision_items_per_batch=0,
        ),
        parallel_config=SimpleNamespace(**sizes),
        cache_config=SimpleNamespace(enable_prefix_caching=prefix_caching),
        attention_config=SimpleNamespace(backend=SimpleNamespace(name=backend) if backend else None),
    )


def test_the_encoder_budget_is_the_decoders_length_unless_set():
    assert max_encoder_len(config(), 64) == 64
    assert max_encoder_len(config(), 4096) == 1024
    assert max_encoder_len(config(max_source_positions=300), 64) == 300


def test_the_budget_lands_where_vllm_looks_for_it():
    made = engine(config(max_source_positions=200))
    T5Gemma2ModelConfig.verify_and_update_config(made)
    assert made.model_config.hf_config.max_source_positions == 200
    assert made.model_config.multimodal_config.mm_processor_cache_gb == 0


def test_c08_a_budget_that_one_step_cannot_hold_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"max_num_batched_tokens is 100, .*the 128 encoder tokens"):
        T5Gemma2ModelConfig.verify_and_update_config(engine(config(max_source_positions=128), batched=100))


def test_b08_prefix_caching_is_switched_off():
    made = engine(config(), prefix_caching=True)
    T5Gemma2ModelConfig.verify_and_update_config(made)
    assert made.cache_config.enable_prefix_caching is False


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_splitting_the_model_is_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"{name} is 2"):
        T5Gemma2ModelConfig.verify_and_update_config(engine(config(), **{name: 2}))


def test_encoder_and_decoder_must_agree():
    made = config()
    made.decoder.vocab_size = 500
    with pytest.raises(
        ValueError, match=r"encoder\.text_config\.vocab_size is 512 but decoder\.vocab_size is 500"
    ):
        T5Gemma2ModelConfig.verify_and_update_config(engine(made))


def test_the_decoder_starts_with_its_own_bos_unless_told():
    assert decoder_start_token_id(config()) == 2
    assert decoder_start_token_id(config(decoder_start_token_id=7)) == 7
    made = config()
    made.decoder.bos_token_id = None
    with pytest.raises(ValueError, match=r"decoder\.bos_token_id"):
        decoder_start_token_id(made)


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("dtype", torch.float16, "dtype is float16"),
        ("quantization", "fp8", "quantization is fp8"),
        ("backend", "FLASHINFER", "attention backend is FLASHINFER"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(flag, value, message):
    """Float16, whose range the activations leave, among them (B32)."""
    with pytest.raises(ValueError, match=message):
        T5Gemma2ModelConfig.verify_and_update_config(engine(config(), **{flag: value}))


def test_a_budget_beyond_the_encoders_positions_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"max_source_positions is 2000, .* is 1024"):
        T5Gemma2ModelConfig.verify_and_update_config(engine(config(max_source_positions=2000), batched=4096))


@pytest.mark.parametrize(("asked", "becomes"), [(None, True), (True, True), (False, False)])
def test_asynchronous_scheduling_is_asked_for_unless_switched_off(asked, becomes):
    made = SimpleNamespace(use_v2_model_runner=True, scheduler_config=SimpleNamespace(async_scheduling=asked))
    require_fast_serving(made)
    assert made.scheduler_config.async_scheduling is becomes


def test_the_v1_runner_on_cuda_is_refused_by_name():
    with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER"):
        require_fast_serving(SimpleNamespace(use_v2_model_runner=False))
