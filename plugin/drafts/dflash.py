"""DFlash: every slot of the block predicts the token at its own position, all at once.

`logits_k = lm_head(norm(x_k))` for slots 1 ... K; a reduced draft vocabulary is mapped back by `target = i + d2t[i]`.
"""

from plugin.drafts.backbone import DraftModel


class T5Gemma2DFlashDraftModel(DraftModel):
    """`DFlashDraftModel` checkpoints; vLLM's DFlash proposer (V1) and speculator (V2) drive it unchanged."""
