"""T5Gemma 2 for vLLM: text encoder, decoder with merged attention, and the way a prompt reaches the encoder."""
