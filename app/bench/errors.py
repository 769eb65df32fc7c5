"""What ends a benchmark with one line for a person."""

from __future__ import annotations


class BenchError(Exception):
    """The benchmark cannot go on; the message names what was asked and what was found."""


class ServerLost(BenchError):
    """A server that was there does not answer any more."""
