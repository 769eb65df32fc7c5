"""A training run: steps, evaluation, run folder, resuming, progress and what it leaves behind."""
