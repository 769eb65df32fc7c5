"""The decoder's merged attention: one softmax over causal self keys and all encoder keys, both paged.

Change here: the meaning (`naive.py`, the slow reference), how a launch is cut (`launch_shape.py` on the host,
`triton_split.py` on the device), the CPU's way (`torch_paged.py`).
"""
