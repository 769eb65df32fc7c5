"""What texts need on their way to tokens and back: tokenizer, threads, windows of long texts, cancellation."""
