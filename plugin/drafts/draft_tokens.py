"""The runner's draft tokens by request, which a draft's graph has written when the runner comes to write them."""

from typing import Any

import torch


class DraftTokens(torch.Tensor):
    """Stands for vLLM's `RequestState.draft_tokens`, `[max_num_requests, K]`: memory, shape and all else are the same.

    The V2 runner's `sample_tokens` scatters what a speculator proposes into it, by the batch's requests. For the batch
    that is said to be `written` it need not, and its assignment does nothing.

    Unnecessary once the runner gives its speculators the tensor to write into.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    written: torch.Tensor | None = None
    """A batch's requests, `[num_requests]`, the very object; None for no batch."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.written is None or key is not self.written:
            super().__setitem__(key, value)
