"""The frozen verifier while a draft trains: its states, its logits and its own greedy answers.

Change here: which states a draft reads (`extraction`), how samples are packed into rows (`packing`), and the forward
pass on the device (`forward`). Nothing in this room learns.
"""
