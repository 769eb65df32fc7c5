"""The draft as it is trained: its shape, model and losses, and its own files in a checkpoint.

Change here: a loss (`losses`), where a draft guesses and what it sees there (`anchors`, `block_attention`), a layer or
head (`model`, `heads`), the shape of a new draft (`shape`, `vocabulary`), config.json (`config`, `checkpoint`).
"""
