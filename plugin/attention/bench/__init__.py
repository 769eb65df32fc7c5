"""Measures the merged attention on a GPU: `python -m plugin.attention.bench` prints a table and one JSON object."""
