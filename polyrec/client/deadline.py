"""Limits the whole time of a blocking HTTP request.

httpx's timeout begins again with each connection, write and read, so a server or proxy that sends its answer
byte by byte could hold a call for any time. Each of these steps gets only what is left of the request's time.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx


class DeadlineTransport(httpx.HTTPTransport):
    """Sends each request within its httpx timeout, from the connection to the last byte of the answer.

    The answer must be read by the thread that sent the request. verify, limits: as of `httpx.Client`.
    """

    def __init__(self, verify: bool, limits: httpx.Limits) -> None:
        context = httpx.create_ssl_context(verify, trust_env=False)
        super().__init__(context, trust_env=False, limits=limits)
        self._deadline = Deadline()
        # httpx takes no network backend, so its pool is replaced
        self._pool.close()
        self._pool = httpcore.ConnectionPool(
            context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_Backend(self._deadline),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._deadline.begin(request.extensions["timeout"]["read"])
        return super().handle_request(request)


class Deadline(threading.local):
    """When the request of the current thread must have ended."""

    _at = 0.0

    def begin(self, timeout_s: float) -> None:
        """Gives the thread's request some seconds from now."""
        self._at = time.monotonic() + timeout_s

    def left_s(self, error: type[Exception]) -> float:
        """Returns the seconds left. Raises `error` if there are none."""
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise error("the request's time is over")
        return left_s


class _Backend(httpcore.SyncBackend):
    """Connects within the deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = self._deadline.left_s(httpcore.ConnectTimeout)
        stream = super().connect_tcp(host, port, left_s, local_address, socket_options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore.NetworkStream):
    """Reads and writes a connection within the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left_s(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # not `self._stream.write`, whose timeout begins again with each part that the peer takes
        connection = self._stream.get_extra_info("socket")
        unsent = memoryview(buffer)
        while unsent:
            connection.settimeout(self._deadline.left_s(httpcore.WriteTimeout))
            try:
                unsent = unsent[connection.send(unsent) :]
            except TimeoutError as e:
                raise httpcore.WriteTimeout(str(e)) from e
            except OSError as e:
                raise httpcore.WriteError(str(e)) from e

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left_s = self._deadline.left_s(httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left_s), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()
