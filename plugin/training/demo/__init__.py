"""The bundled demo, `plugin/demo`: how its tokenizer, verifier and drafts are made.

Change here: the size and training of the verifier (`tiny_verifier`), its tokenizer, and the recipe and shape of the
drafts (`build`), which are trained by `t5gemma2 train <family>` like any other. The problems are in `data/problems`.
"""
