"""The one server of this package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.gateway.process import GatewayProcess, gateway


@pytest.fixture(scope="package")
def server() -> Iterator[GatewayProcess]:
    """The bundled demo, as it is served without any setting, but for shorter limits (decoder 256, encoder 64), and all
    at one K: the tests count its steps. Only the soak changes it, and back.
    """
    with gateway(
        max_model_len=256,
        max_encoder_len=64,
        served_model_name="demo",
        request_metrics="detailed",
        baseline_share=0,
        allow_switch="true",
    ) as running:
        yield running
