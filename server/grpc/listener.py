"""The gRPC server of a process: configures its services, limits and TLS, starts and stops it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from polyrec.server.app.listening import PortInUse
from polyrec.server.app.tls import CertifiedKey
from polyrec.server.grpc.access_log import LoggedCalls
from polyrec.server.grpc.health import HealthService
from polyrec.server.grpc.limits.open_calls import OpenCalls
from polyrec.server.grpc.limits.reading import MessageReader
from polyrec.server.grpc.limits.streams import OpenStreams
from polyrec.server.grpc.reflection import Reflection
from polyrec.server.grpc.service import InferenceService
from polyrec.server.http.connection.access_log import AccessLog
from polyrec.server.http.connection.limits import ConnectionLimits
from polyrec.server.repository.repository import ModelRepository

HANDSHAKE_S = 5.0
CONCURRENT_STREAMS = 1024
"""Maximum calls in progress on one connection."""
MIN_READERS = 16
PING_S = 10.0
"""Minimum interval between a client's pings; gRPC closes the connection of a client that pings more often."""


class GrpcServer:
    """The gRPC server of models that have loaded.

    tls: certificate and key, None for no encryption.
    access_log: None if it is off.
    is_shared: whether sibling processes serve the same port.
    """

    def __init__(
        self,
        models: ModelRepository,
        limits: ConnectionLimits,
        tls: CertifiedKey | None = None,
        access_log: AccessLog | None = None,
        is_shared: bool = False,
    ) -> None:
        max_bytes = max(engine.serving.max_body_bytes for engine in models.engines)
        max_reading = max(MIN_READERS, limits.buffered_bytes // max_bytes)
        limited = models.default.metrics.limited

        def exceeded(limit: str) -> None:
            limited.labels(limit).inc()

        self._streams = OpenStreams(max_reading, exceeded)
        self._tls = tls
        self._stopping: asyncio.Task[None] | None = None
        logged = () if access_log is None else (LoggedCalls(access_log),)
        self._server: Any = grpc.aio.server(
            interceptors=(*logged, OpenCalls(limits.connections, exceeded)),
            options=_options(limits, max_bytes),
            maximum_concurrent_rpcs=limits.connections,
        )
        reader = MessageReader(max_reading, limits.body_s, exceeded)
        inference = InferenceService(
            models, reader, self._streams, tls is not None, limits.write_s, max_bytes, is_shared
        )
        health = HealthService(models, reader, self._streams)
        self._server.add_generic_rpc_handlers(
            (inference.handler(), health.handler(), *Reflection(self._streams).handlers())
        )

    async def start(self, address: str) -> None:
        """Serves at `host:port`, which `listening.reserve` has reserved. Raises PortInUse."""
        try:
            if self._tls is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, _credentials(self._tls))
        except RuntimeError as e:
            raise PortInUse(f"cannot listen on {address} for gRPC: {e}") from None
        await self._server.start()

    def begin_stop(self, timeout_s: float) -> None:
        """Refuses new connections, ends streams, and lets calls in progress finish within the timeout."""
        if self._stopping is None:
            self._streams.stop()
            self._stopping = asyncio.get_running_loop().create_task(self._server.stop(timeout_s))

    async def stopped(self) -> None:
        """Waits until every call has ended and the port is closed."""
        self.begin_stop(0.0)
        assert self._stopping is not None
        await self._stopping


def _options(limits: ConnectionLimits, max_bytes: int) -> list[tuple[str, int]]:
    return [
        # the server's other processes listen on the same port
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_concurrent_streams", CONCURRENT_STREAMS),
        # else gRPC fits windows to the network's speed, and buffers 16 MiB and more of each stream that is
        # not read; without, 64 KiB, and the rest of a message once it is awaited
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.server_handshake_timeout_ms", round(1e3 * HANDSHAKE_S)),
        # pings detect connections whose client is gone
        ("grpc.keepalive_time_ms", round(1e3 * limits.idle_s)),
        ("grpc.keepalive_timeout_ms", round(1e3 * limits.write_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(1e3 * PING_S)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(1e3 * PING_S)),
    ]


def _credentials(tls: CertifiedKey) -> grpc.ServerCredentials:
    """Returns credentials that use the current pair at each handshake, since it may be reloaded."""

    def configured() -> Any:
        cert, key = tls.pair
        return grpc.ssl_server_certificate_configuration([(key, cert)])

    shown = tls.pair

    def fetch() -> Any:
        nonlocal shown
        if tls.pair == shown:
            return None
        shown = tls.pair
        return configured()

    return grpc.dynamic_ssl_server_credentials(configured(), fetch)
