"""`python -m benchmarks.next_vllm`: what would break with another vLLM. Its wheel is read, not imported."""
