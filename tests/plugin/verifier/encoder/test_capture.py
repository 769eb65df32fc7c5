"""Where the encoder is captured, and at which sizes."""

from plugin.verifier.config import T5Gemma2ModelConfig
from plugin.verifier.encoder.capture import encoder_graph_sizes
from tests.plugin.verifier.test_config import config, engine


def encoder_graphs(made, monkeypatch, *, cuda=True):
    """Whether the encoder is captured, at which sizes, for how many prompts."""
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: cuda)
    T5Gemma2ModelConfig.verify_and_update_config(made)
    compilation = made.compilation_config
    return (
        compilation.cudagraph_mm_encoder,
        compilation.encoder_cudagraph_token_budgets,
        compilation.encoder_cudagraph_max_vision_items_per_batch,
    )


def test_the_encoder_is_captured_where_the_engine_has_graphs(monkeypatch):
    from vllm.config.compilation import CUDAGraphMode

    assert encoder_graphs(engine(config()), monkeypatch) == (True, [64, 128, 256], 8)
    assert encoder_graphs(engine(config()), monkeypatch, cuda=False) == (False, [], 0)
    eager, without = engine(config()), engine(config())
    eager.model_config.enforce_eager = True
    without.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    for made in (eager, without):
        assert encoder_graphs(made, monkeypatch) == (False, [], 0)


def test_sizes_that_the_user_set_stay(monkeypatch):
    made = engine(config())
    made.compilation_config.encoder_cudagraph_token_budgets = [4, 96]
    assert encoder_graphs(made, monkeypatch) == (True, [4, 96], 4)


def test_encoder_graphs_go_as_far_as_a_step_does():
    assert encoder_graph_sizes(8192)[-1] == 4096
    assert encoder_graph_sizes(300) == [64, 128, 256]
    assert encoder_graph_sizes(40) == [40]
