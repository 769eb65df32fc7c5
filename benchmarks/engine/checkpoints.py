"""A checkpoint pair of published shape with random weights, for what needs files: a server that loads them."""

from __future__ import annotations

import shutil
from pathlib import Path

from plugin.drafts.checkpoint import DEMO


def write_pair(root: Path) -> Path:
    """Writes a 1B-1B verifier and a DFlash draft for it, 5 GB in all, and returns the draft's folder.

    The tokenizer is the demo's: the table has more rows than it has entries, which no request can notice.
    """
    import torch

    from benchmarks.training import MASK_TOKEN_ID, random_verifier
    from plugin.training.draft.checkpoint import save_draft
    from plugin.training.draft.shape import new_draft, new_shape

    verifier, draft = root / "verifier", root / "dflash"
    model = random_verifier(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    model.save_pretrained(verifier)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / "verifier" / name, verifier / name)
    shape = new_shape("dflash", model.config.decoder, mask_token_id=MASK_TOKEN_ID)
    table = model.get_input_embeddings().weight.detach().cpu()
    del model
    save_draft(draft, new_draft(shape, table, [range(10, 1000)], 0), str(verifier), verifier_softcap=None)
    return draft
