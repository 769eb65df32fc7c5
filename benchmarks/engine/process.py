"""The measuring process's end of an arm: one engine in a process of its own, asked line by line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, TextIO

from app.config.environment import refuse_other_plugins
from app.config.settings import SettingsError


def needs_plugin() -> None:
    """Ends the program where vLLM would not find the plugin; an engine says so only after it has read a checkpoint."""
    try:
        refuse_other_plugins()
    except SettingsError as error:
        sys.exit(str(error))


class Arm(Protocol):
    """Something that answers one command at a time."""

    def ask(self, **command: Any) -> dict[str, Any]:
        """The answer to `command`. Raises `RuntimeError` when there is none."""


class ArmProcess:
    """A benchmark process (`benchmarks.engine.arm`) and the log it writes to.

    Its first answer, `{"ready": seconds}`, comes unasked. A process that does not answer for `timeout_s` is killed.
    """

    def __init__(
        self, name: str, spec: dict[str, Any], log: TextIO, timeout_s: float, command: Sequence[str] = ()
    ) -> None:
        self.name, self.log, self.timeout_s = name, log, timeout_s
        self.process = subprocess.Popen(
            command or [sys.executable, "-m", "benchmarks.engine.arm", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
        )

    def answer(self) -> dict[str, Any]:
        """The next answer; other output goes to the log. RuntimeError when the process ends without one."""
        assert self.process.stdout is not None
        clock = threading.Timer(self.timeout_s, self.process.kill)
        clock.daemon = True
        clock.start()
        try:
            for line in self.process.stdout:
                if line.startswith("@"):
                    return dict(json.loads(line[1:]))
                self.log.write(line)
        finally:
            clock.cancel()
        raise RuntimeError(f"the arm {self.name} ended without an answer: see {self.log.name}")

    def ask(self, **command: Any) -> dict[str, Any]:
        """The answer to `command`. Raises `RuntimeError` when the arm says that it failed, and as `answer`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"the arm {self.name} has ended: see {self.log.name}") from None
        answer = self.answer()
        if "error" in answer:
            raise RuntimeError(
                f"the arm {self.name} failed at {command}: {answer['error']}; see {self.log.name}"
            )
        return answer

    def stop(self) -> None:
        """Ends the process by closing its input, or kills it after half a minute."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
