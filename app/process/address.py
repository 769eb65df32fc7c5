"""Where this process listens, for the line that tells a newcomer what to do next.

An ASGI application is not told its own address. uvicorn says it in its log as soon as it listens, long before an engine
is ready; the numbers are taken from that record.
"""

from __future__ import annotations

import logging

_UNSPECIFIED = ("0.0.0.0", "::")


class ListeningAddress(logging.Filter):
    """Remembers the address of uvicorn's record; lets every record pass."""

    def __init__(self) -> None:
        super().__init__()
        self.url: str | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith("Uvicorn running on %s://"):
            protocol, host, port = record.args  # type: ignore[misc]
            name = "localhost" if host in _UNSPECIFIED else f"[{host}]" if ":" in str(host) else host
            self.url = f"{protocol}://{name}:{port}"
        return True

    def watch(self) -> None:
        """Begins to listen to uvicorn's log."""
        logging.getLogger("uvicorn.error").addFilter(self)

    def forget(self) -> None:
        """Ends it."""
        logging.getLogger("uvicorn.error").removeFilter(self)


def invitation(url: str, prompt: str, with_keys: bool, with_page: bool = False) -> str:
    """One line: where the server is, a first request to copy, and where the page and the documentation are."""
    key = " -H 'Authorization: Bearer KEY'" if with_keys else ""
    page = f" · live page: {url}/" if with_page else ""
    return (
        f"try: curl -s {url}/v1/completions{key} -H 'Content-Type: application/json'"
        f' -d \'{{"prompt": "{prompt}", "max_tokens": 64, "temperature": 0}}\'{page} · documentation: {url}/docs'
    )
