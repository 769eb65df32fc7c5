"""Hooks into structured output, in the engine core's process."""

import copy
from typing import Any

from plugin.vllm_hooks.hook import replace


def compact_json_by_request() -> None:
    """A request's `structured_outputs` may say `disable_any_whitespace`, and nothing in vLLM reads it there: only the
    engine's `structured_outputs_config` counts, for all requests, and with one named grammar engine. Without it the
    grammars allow any white space between the parts of a JSON text, in which a small verifier may lose itself until
    its tokens are used up. Here the request's own word counts, too.

    Unnecessary once the grammar backends read the request's.
    """
    from vllm.v1.structured_output import StructuredOutputManager

    def make(stock: Any) -> Any:
        def _create_grammar(self: Any, request: Any) -> Any:
            asked = request.sampling_params.structured_outputs.disable_any_whitespace
            if not (asked and self.vllm_config.model_config.is_encoder_decoder):
                return stock(self, request)
            if not hasattr(self.backend, "disable_any_whitespace"):
                raise ValueError(f"{type(self.backend).__name__} knows no disable_any_whitespace")
            # Copies, since grammars are compiled in threads; the compiler and its cache stay the same.
            compact = copy.copy(self)
            compact.backend = copy.copy(self.backend)
            compact.backend.disable_any_whitespace = True
            return stock(compact, request)

        return _create_grammar

    replace(StructuredOutputManager, "_create_grammar", ("self", "request"), make)
