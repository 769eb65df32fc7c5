"""The table of request fields for the documentation, made from the code so that it cannot say anything else.

python -m app.completions.reference        # Markdown on standard output
"""

from __future__ import annotations

import json

from app.completions.request import OWN_FIELDS, CompletionRequest


def table() -> str:
    """Every field of the request: default, and what it does or why it is refused."""
    rows = ["| field | default | |", "|---|---|---|"]
    for name, field in sorted(CompletionRequest.model_fields.items()):
        default = json.dumps(field.get_default(call_default_factory=True))
        origin = " Not vLLM's." if name in OWN_FIELDS else ""
        rows.append(f"| `{name}` | `{default}` | {field.description}{origin} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
