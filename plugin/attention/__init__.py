"""The decoder's merged attention: one softmax over causal self keys and all encoder keys, both paged."""
