"""`/drafts` and `/drafts/stats` on plain `vllm serve`.

    VLLM_PLUGINS=t5gemma2 vllm serve plugin/demo/dflash --dtype float32

vLLM loads `DraftsPlugin` by entry point (`vllm.endpoint_plugins`), and only when `VLLM_PLUGINS` names it; the
counters come from `app.drafts.stat_logger`.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, HTTPException

from app.config.settings import Settings
from app.drafts.identity import Identity
from app.drafts.ledger import Ledger
from app.drafts.stat_logger import served_ledger
from app.routes import drafts
from plugin.drafts.checkpoint import CheckpointError, resolve

log = logging.getLogger("app.drafts")


@dataclass(frozen=True)
class Served:
    """What the routes read from the server: the parts of the gateway's state that `vllm serve` has, too."""

    settings: Settings
    identity: Identity
    ledger: Ledger
    drafting: None = None
    """K stays what the engine was started with."""
    history: Mapping[str, Any] = field(default_factory=dict)
    facts: None = None
    """The identity's dtype is the running engine's already; nothing overrules it."""
    admission: None = None
    """Who runs and who waits is the engine's own affair."""
    probe: None = None
    """Prompts of our own belong to the gateway."""


class NothingServed:
    """Stands in for `Served` when the model is none of ours: the routes then say so."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str) -> Any:
        raise HTTPException(404, f"no T5Gemma 2 draft to speak of: {self.why}")


class DraftsPlugin:
    """Entry point of `vllm.endpoint_plugins`."""

    name = "t5gemma2"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        app.include_router(drafts.router)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Read what is served off the engine's own configuration."""
        # The server's own rule; the engine's configuration has the verifier's name where the draft is the model.
        names = args.served_model_name or [args.model]
        state.gateway = served(engine_client.vllm_config, tuple(names))


def served(vllm_config: Any, names: tuple[str, ...]) -> Served | NothingServed:
    """Identity and ledger of a running engine that answers to `names`."""
    model, speculative = vllm_config.model_config, vllm_config.speculative_config
    draft = speculative.model if speculative is not None else "none"
    k = getattr(speculative, "draft_length", getattr(speculative, "num_speculative_tokens", None))
    try:
        checkpoints = resolve(model.model, draft, None, k)
    except CheckpointError as error:
        log.warning("/drafts has nothing to say: %s", error)
        return NothingServed(str(error))
    settings = Settings(
        _env_file=None,
        served_model_name=names,
        dtype=str(model.dtype).removeprefix("torch."),
        max_model_len=model.max_model_len,
        max_encoder_len=model.hf_config.max_source_positions,
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        checkpoints_dir=None,
    )
    ledger = served_ledger()
    assert isinstance(ledger, Ledger)
    return Served(settings, Identity.of(checkpoints, settings), ledger)
