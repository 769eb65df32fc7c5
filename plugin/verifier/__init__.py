"""T5Gemma 2 for vLLM: text encoder, decoder with merged attention, and the way a prompt reaches the encoder.

Change here: what is refused of a configuration (`config.py`), the encoder and its CUDA graphs (`encoder`), what happens
in a step before the decoder (`model_state.py`).
"""
