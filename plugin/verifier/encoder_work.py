"""What the scheduler tells the worker to do of a long prompt's encoder pass in one step, and what that costs."""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.config.ec_manager_config import EncoderCacheManagerMetadata

MOST_TILE_TOKENS, LEAST_TILE_TOKENS = 2048, 64
"""Bounds of a tile: enough tokens to fill a GPU with one layer of them, and enough for a matrix product at all."""


@dataclass(frozen=True, slots=True)
class EncoderWork(EncoderCacheManagerMetadata):
    """One step's part of one encoder pass; vLLM carries it as the encoder cache manager's own message.

    Attributes:
        key: the prompt's identity; None: nobody waits for the pass that the worker holds, it may go.
        prompt, tile_tokens: token ids `[length]` and the size of its tiles, with the first part only.
        first_tile, num_tiles: tiles of `EncoderPass`. With the last one done the worker holds the prompt's states.
    """

    key: str | None
    prompt: torch.Tensor | None = None
    tile_tokens: int = 0
    first_tile: int = 0
    num_tiles: int = 0


class TileCosts:
    """Costs of the tiles of an encoder pass, in tokens that go through the whole encoder: a tile of a short prompt
    costs its tokens over the number of layers; in a full layer a token also attends to the whole prompt.
    """

    def __init__(self, text_config: Any, step_tokens: int) -> None:
        """`step_tokens`: what a step may spend, of which a tile should take a quarter at most."""
        heads, kv_heads = text_config.num_attention_heads, text_config.num_key_value_heads
        attention = text_config.hidden_size * text_config.head_dim * 2 * (heads + kv_heads)
        mlp = 3 * text_config.hidden_size * text_config.intermediate_size
        # Multiplications for one key (a score and a weighted value) over those of all weights of a layer.
        self._key = 2 * heads * text_config.head_dim / (attention + mlp)
        self._full = [kind == "full_attention" for kind in text_config.layer_types]
        quarter = step_tokens * len(self._full) // 4
        self.tile_tokens = min(max(quarter, LEAST_TILE_TOKENS), MOST_TILE_TOKENS)

    def num_tiles(self, length: int) -> int:
        """Tiles of a prompt's whole pass."""
        return len(self._full) * -(-length // self.tile_tokens)

    def cost(self, length: int, tile: int) -> float:
        """Of one tile of a prompt of `length` tokens."""
        layer, i = divmod(tile, -(-length // self.tile_tokens))
        tokens = min(self.tile_tokens, length - i * self.tile_tokens)
        return tokens * (1 + self._full[layer] * length * self._key) / len(self._full)

    def fit(self, length: int, first_tile: int, budget: float) -> int:
        """How many tiles from `first_tile` on cost no more than `budget`; one at least."""
        end = self.num_tiles(length)
        tile, left = first_tile, budget
        while tile < end and (tile == first_tile or left >= self.cost(length, tile)):
            left -= self.cost(length, tile)
            tile += 1
        return tile - first_tile
