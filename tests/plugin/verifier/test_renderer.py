"""A plain prompt becomes the encoder's item; what cannot be one is refused by name; other models are left alone."""

from types import SimpleNamespace

import numpy as np
import pytest
from vllm.exceptions import VLLMValidationError
from vllm.renderers import TokenizeParams

from plugin.verifier.renderer import T5Gemma2Renderer


def renderer(model_type="t5gemma2", budget=8, vocab=100):
    made = object.__new__(T5Gemma2Renderer)
    encoder = SimpleNamespace(text_config=SimpleNamespace(max_position_embeddings=1000))
    made.model_config = SimpleNamespace(
        hf_config=SimpleNamespace(model_type=model_type, max_source_positions=budget, encoder=encoder),
        max_model_len=4,
        get_vocab_size=lambda: vocab,
    )
    return made


def test_the_ids_become_the_text_item():
    prompt = {"encoder_prompt": {"prompt_token_ids": [2, 5, 6], "prompt": "x"}, "decoder_prompt": None}
    got = renderer()._with_encoder_item(prompt)["encoder_prompt"]
    (item,) = got.pop("multi_modal_data")["text"]
    assert got == prompt["encoder_prompt"]
    assert (item.dtype, item.tolist()) == (np.int64, [2, 5, 6])
    assert "multi_modal_data" not in prompt["encoder_prompt"]


def test_another_models_prompt_is_passed_on_as_it_is():
    prompt = {"encoder_prompt": {"prompt_token_ids": []}, "decoder_prompt": None}
    assert renderer(model_type="whisper")._with_encoder_item(prompt) is prompt
    params = TokenizeParams(max_total_tokens=5)
    assert renderer(model_type="whisper")._encoder_budget(params) is params


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "cannot be empty"),
        ([2] * 9, "9 tokens, more than the 8"),
        ([2, 100], "Token id 100 is out of vocabulary"),
        ([-1], "Token id -1 is out of vocabulary"),
        ([2, 1 << 70], f"Token id {1 << 70} is out of vocabulary"),
        ([-(1 << 70), 1 << 70], f"Token id -{1 << 70} is out of vocabulary"),
    ],
)
def test_what_cannot_be_encoded_is_refused(ids, message):
    """Prompts of no, too many or unknown tokens, before anything reaches the engine (A01, A31, C08)."""
    with pytest.raises(VLLMValidationError, match=message):
        renderer()._with_encoder_item({"encoder_prompt": {"prompt_token_ids": ids}, "decoder_prompt": None})


def test_c08_a_prompt_that_fills_the_budget_is_served():
    got = renderer()._with_encoder_item(
        {"encoder_prompt": {"prompt_token_ids": [2] * 8}, "decoder_prompt": None}
    )
    assert got["encoder_prompt"]["multi_modal_data"]["text"][0].tolist() == [2] * 8


def test_a_long_prompts_list_is_read_once():
    """Readings of 8192 ids one by one are what an admission costs the server's event loop."""
    readings = 0

    class Ids(list):
        def __iter__(self):
            nonlocal readings
            readings += 1
            return super().__iter__()

    renderer(budget=10_000)._with_encoder_item(
        {"encoder_prompt": {"prompt_token_ids": Ids([2] * 8192)}, "decoder_prompt": None}
    )
    assert readings <= 1
    with pytest.raises(VLLMValidationError):
        renderer()._with_encoder_item(
            {"encoder_prompt": {"prompt_token_ids": Ids([1 << 70])}, "decoder_prompt": None}
        )
    assert readings > 1  # the control: min and max go through it


def test_tokenising_is_bounded_by_the_encoder_and_not_by_the_output():
    params = TokenizeParams(max_total_tokens=4, max_output_tokens=3)
    got = renderer()._encoder_budget(params)
    assert (got.max_total_tokens, got.max_output_tokens) == (8, 0)


def test_the_tokens_at_the_ends_of_an_answer_are_looked_up_once():
    class Tokenizer:
        asked = 0

        @property
        def eos_token_id(self):
            self.asked += 1
            return 1

    made = renderer()
    made.tokenizer = tokenizer = Tokenizer()
    made.model_config.hf_config.decoder_start_token_id = 2
    for _ in range(3):
        assert (made.get_eos_token_id(), made.get_dec_start_token_id()) == (1, 2)
    assert tokenizer.asked == 1
