"""Loads and unloads models while the server runs (repository extension of the Open Inference Protocol).

    load    opens one of the operator's files and serves it beside the other models. The file may have been
            added to the models folder after the start. A model that is already served is reloaded.
    unload  answers new requests with 404 at once, and waiting requests normally; then frees lanes and memory.

Only one operation runs at a time. The default model cannot be unloaded, as it answers requests that name
none.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import thread_time

from polyrec.models.errors import PolyrecError
from polyrec.models.fetching.url import ModelUrl
from polyrec.models.text import public
from polyrec.server.app.background import run_in_thread
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.app.serving import Serving, differences, log_suffix
from polyrec.server.clock import clock
from polyrec.server.errors import Conflict, Invalid, NotFound, NotReady, shortened
from polyrec.server.repository.repository import ModelRepository
from polyrec.server.repository.settings import ModelFiles

log = logging.getLogger("polyrec.repository")

UNLOADED = "unloaded"
"""Reason of a model that could be loaded, in the repository index."""

SCAN_SHARE = 0.05
"""Maximum share of a core's time for reading the folder of models for the repository index."""

Open = Callable[[Engine, Path | ModelUrl], Serving]
"""Opens a file as a generation of an engine, including its logs; blocks. Raises PolyrecError."""


class ModelLoader:
    """Loads and unloads the models of a repository, except the default.

    files: returns the operator's files, which may have changed since the start.
    drain_s: maximum wait for an unloaded model's remaining answers.
    """

    def __init__(
        self,
        models: ModelRepository,
        files: Callable[[], ModelFiles],
        open_model: Open,
        drain_s: float,
    ) -> None:
        self._models = models
        self._files = files
        self._open = open_model
        self._drain_s = drain_s
        self._lock = asyncio.Lock()
        self._scanning = asyncio.Lock()
        self._next_scan: asyncio.Task[ModelFiles | None] | None = None
        self._scan_after_s = 0.0

    async def unloaded(self) -> list[tuple[str, str]]:
        """Returns (name, why it is not served) of other models, and of files whose name is invalid.

        Any client may ask, and looking at a folder of 1,100 models takes 30 ms. So that is done in a thread,
        for all who wait for it together, and those who ask again wait longer.
        """
        if self._next_scan is None:
            self._next_scan = asyncio.create_task(self._scan_later())
        files = await asyncio.shield(self._next_scan)
        if files is None:
            return []
        reasons = ((public(file), f"invalid name: {reason}") for file, reason in files.invalid.items())
        return [*((name, UNLOADED) for name in files.by_name if name not in self._models.names), *reasons]

    async def _scan_later(self) -> ModelFiles | None:
        """Returns the operator's files, None if they cannot be read, as soon as SCAN_SHARE permits."""
        async with self._scanning:
            await asyncio.sleep(self._scan_after_s - clock())
            self._next_scan = None  # later requests need another scan, as files may change from now on
            files, took_s = await asyncio.to_thread(self._scan)
            self._scan_after_s = clock() + took_s / SCAN_SHARE
            return files

    def _scan(self) -> tuple[ModelFiles | None, float]:
        """Returns the operator's files, and the processor time in seconds."""
        began_s = thread_time()
        try:
            files = self._files()
        except PolyrecError:
            return None, thread_time() - began_s
        return files, thread_time() - began_s

    async def load(self, name: str) -> Engine:
        """Serves a model. Raises NotFound, Invalid, Conflict or NotReady, and then changes nothing."""
        async with self._changing():
            engine = self._served(name)
            file = self._file(name)
            if engine is not None:
                engine.check_no_rollout()
                async with engine.changing():
                    serving = await self._open_in_thread(engine, file)
                    changes = log_suffix(differences(engine.serving, serving))
                    engine.adopt(serving)
                    engine.attach()
                log.warning("model '%s' is loaded, bundle version %s%s", name, serving.version, changes)
                return engine
            engine = Engine(name, self._models.default)
            try:
                serving = await self._open_in_thread(engine, file)
            except BaseException:
                engine.close()  # releases its update log, which could not be opened again otherwise
                raise
            self._models.add(engine, serving)
            engine.attach()
            log.warning("model '%s' is loaded, bundle version %s", name, serving.version)
            return engine

    async def unload(self, name: str) -> None:
        """Stops serving a model and closes it. Raises NotFound, Conflict or NotReady."""
        async with self._changing():
            engine = self._served(name)
            if engine is None:
                raise NotFound(f"model '{shortened(name)}' is not loaded")
            if engine is self._models.default:
                raise Conflict("the default model answers requests that name none: it cannot be unloaded")
            engine.check_no_rollout()
            async with engine.changing():
                self._models.remove(engine)
                await self._close(engine)
            del engine
            # generations have reference cycles, and objects loaded at the start are frozen (gc.freeze)
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            log.warning("model '%s' is unloaded", name)

    def _served(self, name: str) -> Engine | None:
        return next((engine for engine in self._models.engines if engine.name == name), None)

    def _file(self, name: str) -> Path | ModelUrl:
        try:
            files = self._files()
        except PolyrecError as e:
            raise Invalid(public(str(e))) from None
        for file, reason in files.invalid.items():
            log.warning("file '%s' of the models folder is not loaded: %s", public(file), reason)
        if name not in files.by_name:
            known = ", ".join(f"'{each}'" for each in files.by_name)
            raise NotFound(f"there is no model '{shortened(name)}' to load; there are {known}")
        return files.by_name[name]

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        if self._lock.locked():
            raise NotReady("another model is being loaded or unloaded; try again when it is done")
        if self._models.state is not LifecycleState.READY:
            raise NotReady(f"the server is {self._models.state.value}")
        async with self._lock:
            yield

    async def _open_in_thread(self, engine: Engine, file: Path | ModelUrl) -> Serving:
        try:
            return await run_in_thread(lambda: engine.run_named(lambda: self._open(engine, file)))
        except PolyrecError as e:
            raise Invalid(f"the model is not loaded: {public(str(e))}") from None

    async def _close(self, engine: Engine) -> None:
        dispatcher, tiers = engine.serving.dispatcher, engine.serving.tiers
        try:
            await asyncio.wait_for(engine.drained(), self._drain_s)
        except TimeoutError:
            engine.fail_all()
        dispatcher.close()
        if tiers.stacks:
            await run_in_thread(tiers.close)
        if engine.live_quality is not None:
            engine.live_quality.close()
        if engine.prediction_log is not None:
            await run_in_thread(engine.prediction_log.close)
        engine.close()
