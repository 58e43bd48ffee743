"""Writes access log lines for gRPC calls, in the format of HTTP answers plus the gRPC status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from polyrec.server.clock import clock
from polyrec.server.errors import DeadlinePassed
from polyrec.server.grpc.calls import end_of
from polyrec.server.http.connection.access_log import AccessLog, AnsweredBy
from polyrec.server.http.connection.head import REQUEST_ID
from polyrec.server.request_ids import request_id

METHOD, STATUS = b"POST", 200
"""HTTP/2 method and status of every call; errors are in the trailing metadata."""

Behavior = Callable[[Any, Any], Awaitable[Any]]


class LoggedCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Writes a line when a call or stream ends, for a sampled share of the calls to known methods."""

    def __init__(self, access_log: AccessLog) -> None:
        self._access_log = access_log

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """Returns the method's handler, wrapped to write the line."""
        handler = await continuation(details)
        if handler is None or not self._access_log.samples():
            return handler
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._logged(details.method, handler.stream_stream))
        return grpc.stream_unary_rpc_method_handler(self._logged(details.method, handler.stream_unary))

    def _logged(self, method: str, behavior: Behavior) -> Behavior:
        begun_s = clock()

        async def answer(requests: Any, context: Any) -> Any:
            status = grpc.StatusCode.UNKNOWN.name
            try:
                response = await behavior(requests, context)
                status = grpc.StatusCode.OK.name
                return response
            except grpc.aio.AbortError:
                status = context.code().name
                raise
            except asyncio.CancelledError:
                status = _canceled(context)
                raise
            finally:
                self._write(context, method, status, clock() - begun_s)

        return answer

    def _write(self, context: Any, method: str, status: str, took_s: float) -> None:
        given = dict(context.invocation_metadata() or ())
        sent = dict(context.trailing_metadata() or ())
        name = REQUEST_ID.decode()
        identifier = sent.get(name) or given.get(name)
        answered_by = AnsweredBy(sent.get("x-polyrec-path"), sent.get("x-polyrec-reason"))
        self._access_log.write(
            request_id(None if identifier is None else identifier.encode()),
            METHOD,
            method,
            STATUS,
            took_s,
            answered_by,
            status,
        )


def _canceled(context: Any) -> str:
    """Returns the status of a call that gRPC has canceled."""
    code = grpc.StatusCode
    ended = code.DEADLINE_EXCEEDED if isinstance(end_of(context), DeadlinePassed) else code.CANCELLED
    return str(ended.name)
