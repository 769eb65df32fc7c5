"""Serving drafts what training measured: the command that compares the two, against a running gateway."""

from __future__ import annotations

import re

import pytest

from app.bench.served_accuracy import main
from tests.engine.gateway.process import GatewayProcess

pytestmark = pytest.mark.engine


def test_served_acceptance_is_the_teacher_forced_one(
    server: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """At position 0 exactly, up to near ties: no more than two of more than a hundred anchors differ."""
    code = main(["--url", server.url, "--draft", "dflash", "--num-prompts", "12", "--tolerance", "0.02"])
    shown = capsys.readouterr().out
    assert code == 0, shown
    anchors = re.search(r"(\d+) anchors, (\d+) of (\d+) tokens greedy", shown)
    assert anchors is not None and int(anchors[1]) > 100, shown
    assert int(anchors[2]) >= int(anchors[3]) - 2, shown
