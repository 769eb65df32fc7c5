"""Server-sent events as they arrive: bytes in any portions -> the `data` of each event.

Lines end in LF or CRLF; comments (lines that start with a colon, as pings do) and other fields are skipped.
"""

from __future__ import annotations

DONE = "[DONE]"


class EventParser:
    """Keeps what is incomplete between two portions."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, portion: bytes) -> list[str]:
        """The data of every event that this portion completes."""
        *lines, self._rest = (self._rest + portion).split(b"\n")
        events: list[str] = []
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", errors="replace")
            if text.startswith("data:"):
                self._data.append(text[5:].removeprefix(" "))
            elif not text and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events
