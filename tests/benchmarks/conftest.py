"""The small verifier and drafts of the training's tests serve here, too."""

from tests.plugin.training.conftest import make_draft, one_thread, verifier

__all__ = ["make_draft", "one_thread", "verifier"]
