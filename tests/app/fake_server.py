"""`uvicorn tests.app.fake_server:app`: the gateway over a fake engine, in a process of its own.

FAKE holds the engine's fields as JSON; `load_s` delays its start, `fail_start` makes it fail, `die_after_s` kills it,
`child` starts a child process with it, as a real engine has; `imports` begins the real one's imports; `tokenizer` is
the path of one to tokenize with.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer

from app.engine import EnginePlan
from app.logs import lost
from app.process.output import relay_output
from app.text.hf_tokenizer import ThreadSafeTokenizer
from plugin.engine_process import import_ahead
from tests.app.conftest import build
from tests.app.fake_engine import FakeEngine, tokens


def _make() -> Any:
    relay_output(lost)  # as `app:main` does
    options: dict[str, Any] = json.loads(os.environ.get("FAKE", "{}"))
    load_s, fail, die = (options.pop(key, None) for key in ("load_s", "fail_start", "die_after_s"))
    child, length = options.pop("child", False), options.pop("length", 400)
    imports = options.pop("imports", False)
    tokenizer = options.pop("tokenizer", None)
    engine = FakeEngine(script=lambda request, sample: tokens("x" * length), **options)
    if tokenizer:
        backend = Tokenizer.from_file(tokenizer)
        engine.tokenizer = ThreadSafeTokenizer(
            SimpleNamespace(backend_tokenizer=backend, truncation_side="right")
        )
    app = build(engine, shutdown_grace_s=float(os.environ.get("GRACE", "1")))
    gateway = app.state.gateway
    factory = gateway._factory

    def start(plan: EnginePlan) -> FakeEngine:
        if imports:
            import_ahead()
        if child:
            process = multiprocessing.get_context("spawn").Process(
                target=time.sleep, args=(600,), daemon=True
            )
            process.start()
            print(f"child {process.pid}", flush=True)
            engine.child = process
        deadline = time.monotonic() + (load_s or 0)
        while time.monotonic() < deadline:
            time.sleep(0.02)
            if child and not process.is_alive():
                raise RuntimeError("the child process ended")
        if fail:
            raise RuntimeError("no such weights\nsecond line")
        if die:
            threading.Timer(die, lambda: setattr(engine, "dead", True)).start()
        built: FakeEngine = factory(plan)
        return built

    gateway._factory = start
    return app


app = _make() if "FAKE" in os.environ else None
