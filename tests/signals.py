"""Signals in the processes that tests start."""

from typing import Final

HEARING: Final = ("env", "--default-signal=INT,HUP")
"""Before a command. The tests may run behind `nohup`, or in the background of a script, whose signals a process would
go on ignoring."""
