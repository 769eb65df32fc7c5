"""Serving drafts what training measured: the command that compares the two, against a running gateway."""

from __future__ import annotations

import re

import pytest

from benchmarks.served_accuracy import main
from tests.engine.gateway.process import GatewayProcess
from tests.engine.gateway.requests import K

pytestmark = pytest.mark.engine


def test_served_acceptance_is_the_teacher_forced_one(
    server: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """At every position inside the answers, up to near ties: of about 130 anchors no more than two differ."""
    code = main(["--url", server.url, "--draft", "dflash", "--num-prompts", "16", "--tolerance", "0.02"])
    shown = capsys.readouterr().out
    assert code == 0, shown
    counts = re.search(r"(\d+) anchors, (\d+) of (\d+) tokens greedy", shown)
    assert counts is not None, shown
    anchors, greedy, tokens = map(int, counts.groups())
    assert anchors > 100 and greedy >= tokens - 2, shown
    differences = [float(row.split("│")[5]) for row in shown.splitlines() if re.match(r"│\s+\d", row)]
    assert len(differences) == K and max(map(abs, differences)) <= 2 / anchors + 1e-4, shown
