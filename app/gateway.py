"""The server's one object: what is loaded, in which phase it is, and the way from `loading` to the last request's end.

Phases: loading -> ready -> draining -> stopped, or failed (the engine did not start) or dead (it started and died).
Loading blocks for seconds to minutes, so it happens in a thread and the server answers meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import ValidationError

from app.admission import Admission
from app.config.effective import effective
from app.config.settings import Settings, SettingsError
from app.drafts.drafting import Drafting
from app.drafts.identity import Identity
from app.drafts.ledger import Ledger
from app.drafts.probe import Probe
from app.engine import Engine, EngineDead, EngineFactory, EngineFacts, EnginePlan
from app.errors import Dead, Loading, ShuttingDown, in_one_line
from app.probing import probe
from app.process.address import ListeningAddress, invitation
from app.process.child_processes import end_children
from app.progress import LoadingProgress
from app.scope import Running
from app.text.tokenizing import TokenizerPool
from app.warm_up import PROMPT, WarmUpError, cannot_run, warm_up
from app.watching import watch
from plugin.drafts.checkpoint import CheckpointError

log = logging.getLogger("app.gateway")

Phase = Literal["loading", "ready", "draining", "failed", "dead", "stopped"]


_WORDED = (ValidationError, SettingsError, CheckpointError, WarmUpError)
"""Refusals whose message says all; of anything else the log has the traceback too."""


class Gateway:
    """State shared by all routes. Everything but the loading thread lives in the event loop."""

    def __init__(self, settings: Settings, identity: Identity, factory: EngineFactory) -> None:
        self.settings = settings
        self.identity = identity
        self.drafting = Drafting(identity.draft, identity.k, settings)
        self.admission = Admission(
            settings.max_num_seqs * settings.data_parallel_size, settings.max_queued_requests
        )
        self.tokenizing = TokenizerPool()
        self.running = Running()
        self.phase: Phase = "loading"
        self.progress = LoadingProgress()
        self.failure: str | None = None
        self.responds = True
        """Whether the engine answers; else requests wait in it, and no more should be sent."""
        self._started = False
        self._factory = factory
        self._engine: Engine | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loaded = asyncio.Event()
        self._address = ListeningAddress()
        self._watching: asyncio.Task[None] | None = None
        self._fallback: tuple[Identity, Drafting] | None = None
        self.switch_failure: str | None = None
        """Why the last change of checkpoints was taken back."""
        self.history: dict[str, Drafting] = {}
        """What drafts that were served before the present one achieved, by path."""
        self.probe: Probe | None = None
        """What the draft did before the first request, if it was tried."""
        self.on_end: Callable[[], None] = lambda: None
        """Called when the engine is lost for good, so that the process can end."""

    def engine(self) -> Engine:
        """The engine, which requests may use now.

        Raises:
            Loading, ShuttingDown, Dead: they may not.
        """
        if self.phase == "ready":
            assert self._engine is not None
            return self._engine
        if self.phase == "loading":
            raise Loading(f"the model is loading (stage {self.stage}, {self.progress.seconds:.0f} s so far)")
        if self.phase == "draining":
            raise ShuttingDown("the server is shutting down")
        raise Dead(f"the engine is {self.phase}")

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here."""
        return self.phase == "ready" and self.responds

    @property
    def ledger(self) -> Ledger:
        """What the loaded draft achieved."""
        return self.drafting.ledger

    @property
    def stage(self) -> str:
        """What loading is at; ready once it is."""
        return "ready" if self.phase == "ready" else self.progress.stage

    @property
    def facts(self) -> EngineFacts | None:
        """What the engine knows of itself, once it is loaded."""
        return None if self._engine is None else self._engine.facts

    def start(self) -> None:
        """Begins loading and watching; returns at once.

        Raises:
            RuntimeError: it has begun before. What ended stays ended: the engine, the tokenizer's threads, the counts.
        """
        if self._started:
            raise RuntimeError(
                "this application has been started before and has one engine in its life; create_app makes another"
            )
        self._started = True
        log.info("settings: %s", effective(self.settings))
        self._address.watch()
        self._begin_loading()

    def _begin_loading(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self.progress.remind_until(self._loaded)))
        threading.Thread(target=self._load, args=(loop,), name="load-engine", daemon=True).start()

    async def reload(self, identity: Identity, drafting: Drafting) -> None:
        """Serves other checkpoints from now on. Requests that were accepted end first, new ones are told to come back;
        what was served before is served again when the others fail, and `switch_failure` says why they did.

        Raises:
            Loading, ShuttingDown, Dead: nothing can be served, before or afterwards.
        """
        self.engine()
        self.phase, self.switch_failure, self.progress = "loading", None, LoadingProgress()
        self._loaded.clear()
        self.progress("drain", f"{self.admission.in_flight} sequences end before others are loaded")
        await self.admission.emptied()
        if self.phase == "loading":
            self._fallback = self.identity, self.drafting
            self._serve(identity, drafting)
            await self._load_anew()
            await self.loaded()
        self.engine()

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Goes on when nobody waits for it any more; ends with the server."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    def _serve(self, identity: Identity, drafting: Drafting) -> None:
        self.drafting.detach()
        if self.identity.draft is not None:
            self.history[self.identity.draft.path] = self.drafting
        drafting.ledger.encoder = self.drafting.encoder  # its counts are the server's, not a draft's
        self.identity, self.drafting = identity, drafting
        self.history.pop(identity.draft.path if identity.draft is not None else "", None)

    async def _load_anew(self) -> None:
        engine, self._engine = self._engine, None
        if self._watching is not None:
            self._watching.cancel()
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)
            self.drafting.encoder.forget_held()
        if self.phase == "loading":
            self._begin_loading()

    async def loaded(self) -> None:
        """Until loading has ended, well or badly."""
        await self._loaded.wait()

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            engine = self._factory(EnginePlan(self.settings, self.identity, self.drafting, self.progress))
            done = partial(self._built, engine)
        except BaseException as error:
            done = partial(self._failed, error)
        # The server has ended when its loop is closed: `stop` took the engine's processes away while it was loading.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(done)

    def _built(self, engine: Engine) -> None:
        self._engine = engine
        if (loaded := engine.facts.checkpoints) is not None:
            self.identity = replace(self.identity, checkpoints=loaded)
        if self.phase == "loading":
            self.in_background(self._warm_up(engine))
        else:
            self._loaded.set()

    async def _warm_up(self, engine: Engine) -> None:
        try:
            if self.settings.warm_up:
                await warm_up(engine, self.identity, self.progress, self.drafting.lengths)
            await self.drafting.attach(engine.set_draft_length)
            if self.settings.probe:
                self.progress("probe", "what the draft gives on a few prompts")
                self.probe = await probe(engine, self.identity)
        except EngineDead as error:
            self._failed(cannot_run(self.identity, "the engine did not survive the probe", error))
        except Exception as error:
            self._failed(error)
        else:
            self._ready(engine)

    def _ready(self, engine: Engine) -> None:
        self._loaded.set()
        if self.phase != "loading":
            return
        self.phase, self._fallback = "ready", None
        self.responds = True
        watching = watch(engine, self.settings.hang_timeout_s, self._responds, self._died)
        self._watching = self.in_background(watching)
        self.in_background(self.drafting.read_baseline(engine.facts.checkpoints, engine.facts.dtype))
        url = self._address.url
        where = f" on {url}" if url else ""
        log.info("[%5.1f s] ready: serving %s%s", self.progress.seconds, self.identity.model_name, where)
        if url:
            log.info(invitation(url, PROMPT, bool(self.settings.api_keys), self.settings.page))

    def _failed(self, error: BaseException) -> None:
        if self.phase == "loading" and self._fallback is not None:
            self.switch_failure, fallback = in_one_line(error), self._fallback
            self._fallback = None
            log.error("other checkpoints cannot be served, back to the former: %s", self.switch_failure)
            self._serve(*fallback)
            self.in_background(self._load_anew())
            return
        self._loaded.set()
        if self.phase != "loading":
            return
        self.phase, self.failure = "failed", in_one_line(error)
        trace = None if isinstance(error, _WORDED) else error
        log.error("the engine did not start: %s", self.failure, exc_info=trace)
        self.on_end()

    def _responds(self, does: bool) -> None:
        if does and not self.responds:
            log.info("the engine answers again")
        self.responds = does

    def _died(self, why: str) -> None:
        if self.phase in ("ready", "draining"):
            self.phase, self.failure = "dead", why
            log.error("the engine died: %s", why)
            self.interrupt_all()
            self.on_end()
        elif self.phase == "loading":  # `reload` waits for its last requests, and replaces it anyway
            log.error("the engine died before other checkpoints were loaded: %s", why)
            self.running.interrupt(Dead("the engine died"))

    def drain(self) -> None:
        """No new requests from now on; the running ones get the grace time. Called twice, it ends them at once."""
        if self.phase in ("ready", "loading"):
            self.phase = "draining"
            grace_s = self.settings.shutdown_grace_s
            log.info("draining: %d requests running, %g s grace", len(self.running), grace_s)
            asyncio.get_running_loop().call_later(grace_s, self.interrupt_all)
        else:
            self.interrupt_all()

    def interrupt_all(self) -> None:
        """Ends every running request with a proper error, and those that arrive from now on."""
        dead = self.phase in ("dead", "failed")
        self.running.close(Dead("the engine died") if dead else ShuttingDown("the server is shutting down"))

    @property
    def broken(self) -> bool:
        """Whether the process must end with an error."""
        return self.phase in ("failed", "dead") or self.failure is not None

    async def stop(self) -> None:
        """Ends the engine and its processes; afterwards nothing of it is left."""
        if self.phase in ("ready", "loading"):
            self.phase = "draining"
        self.interrupt_all()
        self.drafting.detach()
        self._address.forget()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._engine is None:
            await end_children(self._loaded)
        if self._engine is not None:
            await asyncio.to_thread(self._engine.shutdown)
        self.tokenizing.close()
        self._loaded.set()  # also where the warm-up was cut off
        self.phase = self.phase if self.broken else "stopped"
