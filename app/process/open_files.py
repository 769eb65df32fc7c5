"""How many files, and with them connections, this process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

ENOUGH = 65_536


def allow_more() -> None:
    """Up to what the system allows a process to take itself, `ENOUGH` at most. A shell gives 1 024, with which a
    thousand idle connections would leave none for those that ask for something.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system that allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
