"""Measures the merged attention on a GPU: `python -m benchmarks.attention` prints a table and one JSON object."""
