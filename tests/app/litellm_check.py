"""LiteLLM's `text-completion-openai` provider against a running gateway; LiteLLM is not among the dev packages.

    pip install litellm
    python -m tests.app.litellm_check http://127.0.0.1:8000 dflash

Prints what it got and ends with an error when that is not what the server says elsewhere.
"""

from __future__ import annotations

import sys
from typing import Any

import litellm


def main(url: str, model: str) -> None:
    common: dict[str, Any] = {
        "model": f"text-completion-openai/{model}",
        "prompt": "A train travels 60 miles in 2 hours. What is its average speed?",
        "max_tokens": 32,
        "temperature": 0,
        "api_base": f"{url}/v1",
        "api_key": "none",
    }
    whole = litellm.text_completion(**common)
    streamed = "".join(
        chunk.choices[0].text or "" for chunk in litellm.text_completion(**common, stream=True)
    )
    print(whole.usage)
    print(whole.choices[0].text)
    if streamed != whole.choices[0].text:
        raise SystemExit(f"the stream differs: {streamed!r}")
    try:
        litellm.text_completion(**common, n=2)
    except litellm.BadRequestError as error:
        print(f"n=2 at temperature 0: {error}")
    else:
        raise SystemExit("n=2 at temperature 0 was not refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
