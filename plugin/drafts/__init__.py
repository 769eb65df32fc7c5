"""Block-diffusion drafts (DFlash, DSpark, DFlare): their checkpoints and their vLLM models."""
