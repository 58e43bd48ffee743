"""Runs one server process, from binding the port to the end of the drain.

    bind the port -> answer /livez with 200, /readyz with 503 -> load the plan's paths -> ready
    SIGTERM -> drain (server/app/drain.py)

`serve` builds all parts and connects them: engines, HTTP front end, uvicorn, gRPC, prediction logs. It is
called by `polyrec serve`, by `python -m polyrec.server` and, per process, by server/app/processes.py. The
port is bound before anything is loaded, so that probes are answered during startup; /livez stays 200 to the
end.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from polyrec.models.allocator import retain_freed_memory
from polyrec.models.errors import PolyrecError
from polyrec.models.fetching.url import ModelUrl
from polyrec.server.access.access import Access
from polyrec.server.app.background import is_working, run_in_thread, start_task
from polyrec.server.app.drain import Drain
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.app.listening import (
    BACKLOG,
    Ready,
    address_of,
    announce,
    duplicate_listener,
    listen,
    reserve,
    resolved,
    url_of,
)
from polyrec.server.app.logs import log_to_stderr
from polyrec.server.app.serving import Serving
from polyrec.server.app.settings.settings import Settings
from polyrec.server.app.signals import accept_sighup, ignores_sighup
from polyrec.server.app.tls import check_tls, reload_tls, server_context
from polyrec.server.clock import clock
from polyrec.server.codecs.json_rows import MAX_DIGITS
from polyrec.server.grpc.opening import GrpcPort, require_packages
from polyrec.server.http.admin import Admin
from polyrec.server.http.app import Application, create_app
from polyrec.server.http.connection.access_log import AccessLog
from polyrec.server.http.connection.frontend import HttpFrontend
from polyrec.server.http.connection.handshake import connection_class
from polyrec.server.http.shared_port import SharedPort
from polyrec.server.metrics.event_loop import GcTimer
from polyrec.server.record_pipe import close_pipes
from polyrec.server.repository.application import ModelsApplication
from polyrec.server.repository.loader import ModelLoader
from polyrec.server.repository.repository import ModelRepository
from polyrec.server.source.model_source import ModelSource
from polyrec.server.tracing.tracer import open_tracer

log = logging.getLogger("polyrec.server")


class ModelNotOpened(PolyrecError):
    """One of several models cannot be opened; the message names it and the reason."""


class Server(uvicorn.Server):
    """uvicorn's server with a `Drain` as its signal handler."""

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Passes a signal to the drain."""
        self._drain.signaled(self, sig)


def serve(
    settings: Settings,
    on_ready: Callable[[Ready], object],
    shared: socket.socket | None = None,
    own: socket.socket | None = None,
) -> int:
    """Serves until a signal ends the server; returns the exit status.

    shared: a listening socket that sibling processes also accept from (server/app/processes.py).
    own: a listening socket of this process alone; replaces the address in the settings.
    Raises PolyrecError if the server cannot start.
    """
    log_to_stderr(settings.log_level, log_format=settings.log_format)
    if settings.log_level == "warning":
        # uvicorn warns about every request that is not HTTP, so any client could flood the log
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    if settings.tls_cert is not None and settings.tls_key is not None:
        check_tls(settings.tls_cert, settings.tls_key)
    retain_freed_memory()
    # parsing an integer takes time quadratic in its digits: 90 us for 4,000, 23 ms for a body full of them
    sys.set_int_max_str_digits(MAX_DIGITS)
    with ExitStack() as opened:
        listener = opened.enter_context(own or listen(settings.host, settings.port))
        grpc = None
        if settings.grpc_port is not None:
            require_packages()
            address = resolved(settings.host, settings.grpc_port)
            if shared is None:  # otherwise the supervising process has reserved the port
                address = address_of(opened.enter_context(reserve(settings.host, settings.grpc_port)))
            grpc = GrpcPort(settings, address, is_shared=shared is not None)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, listener, on_ready, shared, grpc))


async def _serve(
    settings: Settings,
    listener: socket.socket,
    on_ready: Callable[[Ready], object],
    shared: socket.socket | None,
    grpc: GrpcPort | None,
) -> int:
    files = settings.model_files(strict=True).by_name
    source = ModelSource(settings)
    settings.check_shares(list(files))
    models = _make_models(settings, list(files))
    loader = None
    if files:
        open_model = partial(_open_model, settings, source)
        loader = ModelLoader(models, settings.model_files, open_model, settings.drain_timeout_s)

    def application(of: Engine) -> Application:
        load = partial(source.read_for_admin, of.model_name if files else None)
        return create_app(of, Admin(of, load), settings.docs, models, loader)

    engine = models.default
    app = ModelsApplication(models, application)
    served: ASGIApp = app
    if shared is not None:
        served = SharedPort(app, shared.getsockname()[1], consecutive=settings.port != 0)
    access_log = AccessLog.from_rate(settings.access_log)
    frontend = HttpFrontend(served, app.hot, engine, settings.connection_limits(), access_log)
    context = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        context = server_context(settings.tls_cert, settings.tls_key)
    drain = Drain(
        models,
        shared or listener,
        settings.drain_grace_s,
        settings.drain_timeout_s,
        on_stop=(lambda: None) if grpc is None else grpc.begin_stop,
        on_end=frontend.stop,
    )
    # longer than the drain timeout, at whose end waiting requests are answered
    shutdown_s = math.ceil(settings.drain_timeout_s) + 1
    server = Server(_uvicorn_config(served, connection_class(frontend, context), shutdown_s), drain)
    _handle_sighup(server, engine, context, settings, grpc)
    url = url_of("http" if context is None else "https", listener)  # before a signal can close the listener
    with GcTimer(engine.metrics.collected):
        await _run_until_stopped(
            server,
            models,
            frontend,
            grpc,
            load=partial(_load, models, settings, source, files),
            limit=partial(_limit_connections, settings, frontend, grpc),
            announce=partial(_announce, models, url, grpc, on_ready),
            # of a shared socket, one accept per iteration: connections go to the process with the idlest loop
            sockets=duplicate_listener(listener) if shared is None else [shared, listener],
            accept_while_loading=shared is None,
        )
    models.close()
    log.warning("the server has ended")
    if is_working():
        # a thread is opening a plan and would crash during interpreter shutdown
        os._exit(0)
    return 0


def _make_models(settings: Settings, names: Sequence[str]) -> ModelRepository:
    """Creates the engines, not loaded yet, of several models or, without names, of the only one."""
    engine = Engine(names[0] if names else None)
    if not names:
        engine.model_name = settings.model_name
    engine.access = Access(
        engine.metrics, settings.tokens, settings.admin_token, settings.open_rights, clock=clock
    )
    engine.tracer = open_tracer(os.environ)
    models = ModelRepository([engine, *(Engine(name, engine) for name in names[1:])])
    if names:
        models.share_time(frozenset(os.sched_getaffinity(0)), settings.share_of)
    return models


def _uvicorn_config(app: ASGIApp, connections: type[asyncio.Protocol], shutdown_s: int) -> uvicorn.Config:
    """Configures uvicorn to accept connections and run the application with our own connection class."""
    return uvicorn.Config(
        app,
        http=connections,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=shutdown_s,
        backlog=BACKLOG,
    )


def _handle_sighup(
    server: Server, engine: Engine, context: ssl.SSLContext | None, settings: Settings, grpc: GrpcPort | None
) -> None:
    """Makes SIGHUP reload tokens and certificate. Without either it drains, unless ignored (nohup)."""
    cert, key = settings.tls_cert, settings.tls_key
    rereads = settings.tokens is not None or cert is not None

    def reread() -> None:
        if not rereads:
            server.handle_exit(signal.SIGHUP, None)
            return
        engine.access.reload()
        if cert is not None and key is not None and context is not None:
            reload_tls(context, cert, key)
            if grpc is not None:
                grpc.reload_key()

    if rereads or not ignores_sighup():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reread)
    accept_sighup()


async def _run_until_stopped(
    server: Server,
    models: ModelRepository,
    frontend: HttpFrontend,
    grpc: GrpcPort | None,
    load: Callable[[], None],
    limit: Callable[[], None],
    announce: Callable[[], Awaitable[None]],
    sockets: list[socket.socket],
    accept_while_loading: bool,
) -> None:
    """Loads and serves until a signal ends the server. Raises PolyrecError from `load`.

    load: blocks. limit: called when everything is open.
    """
    sweeping = start_task(frontend.sweep(), "the timeouts of connections")
    loading = run_in_thread(load)
    if not accept_while_loading:
        await asyncio.wait((loading,))
    serving = asyncio.create_task(server.serve(sockets=sockets))
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            limit()
            models.attach()
            # loaded objects live until the end, so keep the collector from scanning them again
            gc.collect()
            gc.freeze()
            if models.state is LifecycleState.READY:  # unless a signal already began the drain
                await announce()
    except BaseException:
        server.should_exit = True
        raise
    finally:
        await serving
        if grpc is not None:
            await grpc.stopped()
        sweeping.cancel()
        _end_processes(models)
        if not loading.done():
            # the loading thread still changes the models and would crash during interpreter shutdown
            os._exit(0)


def _limit_connections(settings: Settings, frontend: HttpFrontend, grpc: GrpcPort | None) -> None:
    """Limits connections to the file descriptors that bundles, lanes and logs have left."""
    limits = settings.connection_limits(len(frontend.connections))
    wanted = settings.max_connections
    if wanted is not None and limits.connections < wanted:
        log.warning(
            "at most %d connections instead of %d: the limit of file descriptors (ulimit -n) is too low",
            limits.connections,
            wanted,
        )
    frontend.limits = limits
    if grpc is not None:
        grpc.limits = limits


async def _announce(
    models: ModelRepository, url: str, grpc: GrpcPort | None, on_ready: Callable[[Ready], object]
) -> None:
    """Starts gRPC if configured, then announces that the server is ready."""
    if grpc is not None:
        await grpc.start(models)
    announce(_ready(models, url, grpc), on_ready)


def _end_processes(models: ModelRepository) -> None:
    """Ends the helper processes, which judge live quality and write prediction logs and traces."""
    for live in models.live_qualities:
        live.close()
    logs = [models.default.tracer, *(engine.prediction_log for engine in models.engines)]
    close_pipes([each.pipe for each in logs if each is not None])


def _load(
    models: ModelRepository, settings: Settings, source: ModelSource, files: Mapping[str, Path | ModelUrl]
) -> None:
    """Loads all plans and prediction logs, then serves all models at once; blocks. Raises PolyrecError."""
    # else np.unique imports it in the first request, which takes 10 ms, more than many budgets
    import_module("numpy.ma")
    opened: list[Serving] = []
    try:
        for engine in models.engines:
            try:
                file = files.get(engine.name)
                opened.append(engine.run_named(partial(_open_model, settings, source, engine, file)))
            except PolyrecError as e:
                if not files:
                    raise
                raise ModelNotOpened(f"model '{engine.name}': {e}") from None
    except BaseException:
        for serving in opened:
            serving.close()
        raise
    for engine, serving in zip(models.engines, opened, strict=True):
        engine.adopt(serving)


def _open_model(
    settings: Settings, source: ModelSource, engine: Engine, file: Path | ModelUrl | None
) -> Serving:
    """Opens a model, and the first time also its prediction log; blocks. Raises PolyrecError.

    file: the plan or bundle of one of several models; None for the single model of the settings.
    """
    engine.update_store.in_memory = settings.updates
    if (folder := settings.update_log) is not None:
        engine.update_store.log_folder = folder if file is None else folder / engine.name
    serving = engine.open(*source.read(file))
    if settings.update_log is not None and not serving.tiers.changes:
        log.warning("--update-log: no path accepts row updates; --updates enables them for rows in memory")
    if settings.prediction_log is not None and engine.prediction_log is None:
        folder = settings.prediction_log if file is None else settings.prediction_log / engine.name
        try:
            _open_log(engine, settings, folder, serving)
        except BaseException:
            serving.close()
            raise
    return serving


def _open_log(engine: Engine, settings: Settings, folder: Path, serving: Serving) -> None:
    """Opens a model's prediction log and its live quality measurement. Raises PolyrecError."""
    log_settings = settings.prediction_log_settings(folder)
    # live quality first: it starts no process until the model is served, so an error leaves none behind
    if settings.live_quality != "off":
        engine.open_live_quality(settings.live_quality_settings(), log_settings, serving)
    engine.open_prediction_log(log_settings, serving)


def _ready(models: ModelRepository, url: str, grpc: GrpcPort | None) -> Ready:
    serving = models.default.serving
    several = len(models.engines) > 1
    return Ready(
        url=url,
        pid=os.getpid(),
        paths=tuple(
            f"{engine.name}:{path.name}" if several else path.name
            for engine in models.engines
            for path in engine.serving.paths
        ),
        runtime=serving.plan.paths[0].runtime,
        bundle_version=serving.version,
        grpc=None if grpc is None else grpc.address,
    )
