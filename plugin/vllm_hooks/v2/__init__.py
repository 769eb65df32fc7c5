"""Hooks into vLLM's V2 runner, CUDA's: a decode step's batch, sampling and outputs with few launches and copies.

Change here: which steps are decode steps and which graph they replay (`runner.py`), a batch that goes on or is another
(`batches.py`, `decode_batch.py`, `steps.py`), what a graph samples (`graph_sampling.py`) and how a program is launched
(`quick_launch.py`).
"""
