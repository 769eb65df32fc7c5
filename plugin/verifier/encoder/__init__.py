"""The text encoder: its layers, whole and in parts, its CUDA graphs, and how much of it runs in which step.

Change here: the layers (`text_encoder.py`), a prompt in parts (`passes.py`), what is captured (`capture.py`) and how
(`graphs.py`, `pass_graphs.py`), what a step encodes and which states are held (`cache.py` in the scheduler, `work.py`
between, `states.py` in the worker).
"""
