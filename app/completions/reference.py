"""The table of request fields for the documentation, made from the code so that it cannot say anything else.

python -m app.completions.reference        # Markdown on standard output
"""

from __future__ import annotations

import json
from typing import Any

from app.completions.protocol import OWN_FIELDS, REFUSED, CompletionRequest

NOTES: dict[str, str] = {
    "add_special_tokens": "puts BOS before a text; ids are used as given",
    "allowed_token_ids": "below the vocabulary size, not empty",
    "bad_words": "",
    "best_of": "must equal `n`",
    "cache_salt": "accepted; no cache is shared between prompts in any case",
    "echo": "the prompt before the text; not with `logprobs`; with `max_tokens: 0` alone",
    "frequency_penalty": "-2 ... 2",
    "ignore_eos": "",
    "include_stop_str_in_output": "",
    "logit_bias": "refused with a draft",
    "logprob_token_ids": "needs `logprobs`; refused with a draft",
    "logprobs": "0 ... 20",
    "max_completion_tokens": "alias of `max_tokens`, which wins",
    "max_tokens": "cut to max_model_len - 1; 0 with `echo` only",
    "min_p": "0 ... 1; refused with a draft",
    "min_tokens": "",
    "model": "one of the ids of `/v1/models`; null: the first",
    "n": "1 ... 128; 1 at temperature 0",
    "presence_penalty": "-2 ... 2",
    "prompt": "text, token ids, or a list of up to 1024 of either; the encoder's input",
    "repetition_detection": "ends with `finish_reason: repetition`",
    "repetition_penalty": "above 0",
    "request_id": "in the response's id; header `X-Request-Id` otherwise",
    "request_metrics": "`none`, `summary` or `detailed`; default T5GEMMA_REQUEST_METRICS",
    "response_format": "`text`, `json_object`, `json_schema`, `structural_tag`",
    "return_token_ids": "adds `prompt_token_ids` and `token_ids` to choices",
    "return_tokens_as_token_ids": "`token_id:N` in place of token texts in `logprobs`",
    "seed": "64-bit integer",
    "session_id": "passed to the engine",
    "skip_special_tokens": "",
    "spaces_between_special_tokens": "",
    "stop": "up to 64 strings; never shown in the text",
    "stop_token_ids": "below the vocabulary size",
    "stream": "server-sent events, then `data: [DONE]`",
    "stream_interval": "tokens an event",
    "stream_options": "`include_usage`, `continuous_usage_stats`",
    "structured_outputs": "one of `json`, `regex`, `choice`, `grammar`, `json_object`, `structural_tag`",
    "temperature": "0 ... 2; default: the generation config's, else 1",
    "top_k": "0 or -1: all",
    "top_p": "above 0 ... 1",
    "truncate_prompt_tokens": "-1: to max_encoder_len",
    "truncation_side": "the side that is cut: `left` or `right`",
    "user": "ignored",
}
"""What the type and the default do not say; a field without a note speaks for itself."""


def table() -> str:
    """Every field of the request: default, and what it does or why it is refused."""
    rows = ["| field | default | |", "|---|---|---|"]
    for name, field in sorted(CompletionRequest.model_fields.items()):
        default = json.dumps(field.get_default(call_default_factory=True))
        rows.append(f"| `{name}` | `{default}` | {_says(name)} |")
    return "\n".join(rows) + "\n"


def _says(name: str) -> str:
    if name in REFUSED:
        return f"400: {REFUSED[name]}"
    note: Any = NOTES[name]
    return f"{note} (not vLLM's)" if name in OWN_FIELDS else note


if __name__ == "__main__":
    print(table(), end="")
