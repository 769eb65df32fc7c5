"""What the scheduler tells the worker to do of a long prompt's encoder pass in one step, and what that costs."""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.config.ec_manager_config import EncoderCacheManagerMetadata

from plugin.verifier.encoder.capture import NOT_CAPTURED, PassSizes

LEAST_ROWS = 64
"""Of a part: enough for a matrix product at all."""

ALIGNED_ROWS = 16
"""A part's rows are a multiple of it, but for a stage's last. For rows that begin where 16 does not divide their
address Triton compiles another program, for a tenth of a second in the middle of a step."""

GPU_FLOPS = 5e14
"""What the encoder reaches on an H200 in bfloat16: 8192 tokens of the 1B shape, 12.5e12 operations, in 24 ms (time to
first token without held states less that with them, BENCHMARKS.md)."""

LAUNCH_S = 1e-3
"""Host seconds of a part's launches there: what a step takes longer that has one, of a prompt of 8192 tokens beside
four streams."""


@dataclass(frozen=True, slots=True)
class EncoderWork(EncoderCacheManagerMetadata):
    """One step's part of one encoder pass; vLLM carries it as the encoder cache manager's own message.

    Attributes:
        key: the prompt's identity; None: nobody waits for the pass that the worker holds, it may go.
        prompt: token ids `[length]`, with the first part only.
        first_row, num_rows: of `EncoderPass`, which counts stage after stage.
    """

    key: str | None
    prompt: torch.Tensor | None = None
    first_row: int = 0
    num_rows: int = 0


class PassCosts:
    """Costs of the parts of an encoder pass, in tokens that go through the whole encoder.

    All of a layer's weights over the number of layers is what a row (a token in one stage) of a short prompt costs; in
    the first stage it has the projections alone and in the last one it has none. A row also attends: to a window, or in
    a full layer to the whole prompt. On a GPU a part takes the host its launches, too, however few rows it has: while
    the GPU computes, so the larger of the two counts. Where a pass is captured (`pass_graphs.py`), a part
    is whole stages of the graph that holds the prompt, and launching it costs nothing to speak of.
    """

    def __init__(
        self,
        text_config: Any,
        decoder_config: Any,
        step_tokens: int,
        captured: PassSizes = NOT_CAPTURED,
        launch_s: float = 0.0,
    ) -> None:
        """
        Args:
            text_config, decoder_config: the encoder's, the decoder's.
            step_tokens: what a step beside running requests may spend; parts are as large.
            captured: the passes that are captured.
            launch_s: host seconds of a part that is not captured.
        """
        heads, kv_heads = text_config.num_attention_heads, text_config.num_key_value_heads
        layers = len(text_config.layer_types)
        attention = text_config.hidden_size * text_config.head_dim * 2 * (heads + kv_heads)
        weights = attention + 3 * text_config.hidden_size * text_config.intermediate_size
        self._step_tokens, self._captured, self._num_stages = step_tokens, captured, 1 + layers
        # Multiplications over those of a layer's weights: of a score and a weighted value for one key, of the
        # projections to queries, keys and values, and of the decoder's projections to cross keys and values.
        self._key = 2 * heads * text_config.head_dim / weights
        self._projections = text_config.hidden_size * text_config.head_dim * (heads + 2 * kv_heads) / weights
        cross = 2 * decoder_config.num_key_value_heads * decoder_config.head_dim * text_config.hidden_size
        self._cross = decoder_config.num_hidden_layers * cross / (layers * weights)
        window = text_config.sliding_window
        self._windows = [None if kind == "full_attention" else window for kind in text_config.layer_types]
        self._launch = launch_s * GPU_FLOPS / (2 * layers * weights)

    def num_rows(self, length: int) -> int:
        """Rows of a prompt's whole pass."""
        return self._num_stages * length

    def cross(self, length: int) -> float:
        """Of a prompt's cross keys and values, in the step that admits it."""
        return length * self._cross

    def last(self, length: int, first_row: int) -> float:
        """Of the rest of a pass in the step that admits the prompt. On a GPU admitting takes the host about as long as
        a part's launches do, and it launches the step only then: there the two cost what they take one after another.
        """
        rows = self.rows(length, first_row, self.num_rows(length) - first_row)
        return rows + self.cross(length) + self._launch

    def rows(self, length: int, first_row: int, num_rows: int) -> float:
        """Of so many rows of a pass, the launches left out. A captured part computes what it has room for."""
        spent, end, row = 0.0, first_row + num_rows, first_row
        while row < end:
            stage, taken = row // length, min(self._part(length, row), end - row)
            spent += self._row(length, stage) * (self._captured.part(length) or taken)
            row += taken
        return spent

    def fit(self, length: int, first_row: int, budget: float) -> int:
        """How many rows from `first_row` on cost no more than `budget`; one part at least, and whole parts."""
        end, row, spent, launches = self.num_rows(length), first_row, 0.0, 0.0
        captured = self._captured.part(length)
        while row < end:
            part = self._part(length, row)
            spent += self.rows(length, row, part)
            launches += 0.0 if captured else self._launch
            if row > first_row and max(spent, launches) > budget:
                break
            row += part
        return row - first_row

    def _part(self, length: int, first_row: int) -> int:
        """Rows of the part that begins there. Without graphs a stage is cut evenly into parts of a step's cost."""
        stage, row = divmod(first_row, length)
        if part := self._captured.part(length):
            return min(part - row % part, length - row)
        most = max(
            int(self._step_tokens / self._row(length, stage)) // ALIGNED_ROWS * ALIGNED_ROWS, LEAST_ROWS
        )
        even = -(-length // -(-length // most))
        return min(-(-even // ALIGNED_ROWS) * ALIGNED_ROWS, length - row)

    def _row(self, length: int, stage: int) -> float:
        """Of one row of a stage."""
        weights = 0.0
        if stage < self._num_stages - 1:
            weights += self._projections
        if stage:
            window = self._windows[stage - 1]
            keys = length if window is None else min(window, length)
            weights += 1 - self._projections + keys * self._key
        return weights / (self._num_stages - 1)
