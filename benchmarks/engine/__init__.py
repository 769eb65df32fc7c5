"""Measurements of the engine itself on a GPU, at the published model's shapes with random weights."""
