"""What a draft is trained on: from a file, the hub or a mixture to conversations, pairs and samples of token ids.

Change here: a kind of source (`sources`, `profiles`), which turn is the response and how a prompt is worded
(`conversations`, `pairs`), the draw and its order (`mixture`), and the cutting and splitting of samples (`samples`).
"""
