"""Whose word counts where JSON is to be compact."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.structured_output import StructuredOutputManager

from plugin.vllm_hooks import hook, structured_output


class Stock:
    """Stands for vLLM's manager, and takes note of the backend that each grammar is made with."""

    def __init__(self, backend: Any, encoder_decoder: bool = True) -> None:
        model = SimpleNamespace(is_encoder_decoder=encoder_decoder)
        self.backend, self.vllm_config = backend, SimpleNamespace(model_config=model)


def grammar(self: Any, request: Any) -> tuple[Any, bool]:
    return self.backend, self.backend.disable_any_whitespace


@pytest.fixture
def create(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(hook, "REPLACED", dict(hook.REPLACED))
    monkeypatch.setattr(StructuredOutputManager, "_create_grammar", grammar)
    structured_output.compact_json_by_request()
    return StructuredOutputManager._create_grammar


def request(compact: bool) -> Any:
    wanted = SimpleNamespace(disable_any_whitespace=compact)
    return SimpleNamespace(sampling_params=SimpleNamespace(structured_outputs=wanted))


def test_a_request_has_its_own_word(create: Any) -> None:
    """Compact beside loose: what the others share stays as it is."""
    backend = SimpleNamespace(disable_any_whitespace=False, compiler=object())
    manager = Stock(backend)
    used, compact = create(manager, request(True))
    assert compact and used is not backend and used.compiler is backend.compiler
    assert create(manager, request(False)) == (backend, False)
    assert manager.backend is backend and not backend.disable_any_whitespace


def test_other_models_are_left_alone(create: Any) -> None:
    backend = SimpleNamespace(disable_any_whitespace=False)
    assert create(Stock(backend, encoder_decoder=False), request(True)) == (backend, False)


def test_a_backend_that_cannot_says_so(create: Any) -> None:
    with pytest.raises(ValueError, match="SimpleNamespace knows no disable_any_whitespace"):
        create(Stock(SimpleNamespace()), request(True))
