"""Opens the gRPC port of a server process. Imports gRPC, an optional dependency, only if it is configured."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from polyrec.server.app.settings.settings import Settings, SettingsError
from polyrec.server.app.tls import CertifiedKey
from polyrec.server.http.connection.access_log import AccessLog

if TYPE_CHECKING:
    from polyrec.server.grpc.listener import GrpcServer
    from polyrec.server.repository.repository import ModelRepository

PACKAGES = ("grpc", "grpc_health", "grpc_reflection", "google.protobuf")


def require_packages() -> None:
    """Raises SettingsError unless gRPC's packages are installed."""
    if not all(map(_installed, PACKAGES)):
        raise SettingsError("grpc_port needs packages that are not installed: pip install 'polyrec[grpc]'")


class GrpcPort:
    """The gRPC server at `address` (`host:port`), before it starts, while it runs and until it has ended.

    is_shared: whether sibling processes serve the same address.
    limits: of the connections; read when it starts.
    """

    def __init__(self, settings: Settings, address: str, is_shared: bool = False) -> None:
        self.address = address
        self.limits = settings.connection_limits()
        self._is_shared = is_shared
        self._access_log = AccessLog.from_rate(settings.access_log)
        self._drain_timeout_s = settings.drain_timeout_s
        self._key = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            self._key = CertifiedKey(settings.tls_cert, settings.tls_key)
        self._server: GrpcServer | None = None

    async def start(self, models: ModelRepository) -> None:
        """Serves models that have loaded. Raises PortInUse."""
        # gRPC's core logs bad handshakes and requests, so any client could flood the log
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_not_caused_by_client)
        from polyrec.server.grpc.listener import GrpcServer

        self._server = GrpcServer(models, self.limits, self._key, self._access_log, self._is_shared)
        await self._server.start(self.address)

    def reload_key(self) -> None:
        """Reloads certificate and key for new connections."""
        if self._key is not None:
            self._key.reload()

    def begin_stop(self) -> None:
        """Refuses new connections, ends streams, and lets calls in progress finish."""
        if self._server is not None:
            # longer than the drain timeout, at whose end waiting requests are answered
            self._server.begin_stop(self._drain_timeout_s + 1)

    async def stopped(self) -> None:
        """Waits until every call has ended and the port is closed."""
        if self._server is not None:
            await self._server.stopped()


def _is_not_caused_by_client(record: logging.LogRecord) -> bool:
    """Returns whether a gRPC log record is kept, as no client can cause it at will.

    gRPC logs metadata that is not UTF-8, even tokens, and a traceback when a client leaves responses unread.
    """
    return not str(record.msg).startswith(("Invalid encoding", "ExecuteBatchError raised"))


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
