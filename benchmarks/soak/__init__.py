"""Thousands of mixed requests, and more than can be served, against a real server: `python -m benchmarks.soak`."""
