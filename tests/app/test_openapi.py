"""The server against its own OpenAPI document: whatever is sent, no 5xx and no status that it does not mention.

The engine is a fake one, but the validation, the errors and the document are the server's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from app.completions.request import REFUSED
from tests.app.conftest import build
from tests.app.fake_engine import FakeEngine
from tests.app.web_server import WebServer

EXAMPLES = {"POST /v1/completions": 1000, "POST /tokenize": 400, "POST /detokenize": 400}
"""With 200 of each operation else: two thousand and more in all."""


SCHEMA = schemathesis.openapi.from_dict(build(FakeEngine()).openapi())
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
CHECKED = [status_code_conformance, content_type_conformance]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with WebServer(build(FakeEngine(k=3), max_queued_requests=5000)) as server:
        yield server


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_no_surprise(url: str, label: str) -> None:
    """C: no 5xx, and no undocumented status or type."""

    count = EXAMPLES.get(label, 200)

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(OPERATIONS[label].as_strategy())
    def ask(case: schemathesis.Case) -> None:
        reply = case.call(base_url=url, session=session)
        assert reply.status_code < 500
        case.validate_response(reply, checks=CHECKED)

    with requests.Session() as session:
        ask()


def test_document() -> None:
    """Every refused field is in it, and no 422, which this server never sends."""
    document = build(FakeEngine()).openapi()
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert set(REFUSED) <= set(fields)
    answers = [operation["responses"] for path in document["paths"].values() for operation in path.values()]
    assert answers and not any("422" in found for found in answers)
