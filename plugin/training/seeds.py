"""Random generators that are functions of where they are used, so that no random state is ever saved.

A run that stops after any step and goes on draws what it would have drawn, since every draw names its own key.
"""

from __future__ import annotations

import hashlib

import torch


def seeded(*key: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` for one `key`, such as (seed, step, "anchors"); equal keys, equal draws."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)
