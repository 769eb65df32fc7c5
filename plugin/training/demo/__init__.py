"""How the bundled demo was made: its tokenizer, its tiny verifier and its three drafts."""
