"""Implements grpc.health.v1.Health, which reports readiness to load balancers like /readyz.

The whole server (the empty name) and the inference service are ready if all models are. Readiness may change
without an event, for instance when a lane dies, so a watch polls it every WATCH_S.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from polyrec.server.errors import NotFound, RequestError, shortened
from polyrec.server.grpc.calls import abort
from polyrec.server.grpc.infer_codec import parse_message
from polyrec.server.grpc.limits.reading import MessageReader
from polyrec.server.grpc.limits.streams import OpenStreams
from polyrec.server.grpc.messages import SERVICE
from polyrec.server.repository.repository import ModelRepository

HEALTH = "grpc.health.v1.Health"
WATCH_S = 0.25
Status = health_pb2.HealthCheckResponse


class HealthService:
    """The health service of one server."""

    def __init__(self, models: ModelRepository, reader: MessageReader, streams: OpenStreams) -> None:
        self._models = models
        self._reader = reader
        self._streams = streams

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the handler of the service's methods."""
        handlers = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(HEALTH, handlers)

    async def _check(self, unused: Any, context: Any) -> bytes:
        try:
            name = await self._named(context)
            status = self._status(name)
            if status == Status.SERVICE_UNKNOWN:
                raise NotFound(f"unknown service '{shortened(name)}'")
        except RequestError as e:
            await abort(context, e)
        return bytes(Status(status=status).SerializeToString())

    async def _watch(self, unused: Any, context: Any) -> None:
        try:
            await self._streams.run(self._report(context, await self._named(context)))
        except RequestError as e:
            await abort(context, e)

    async def _report(self, context: Any, name: str) -> None:
        """Sends the status of a service now and whenever it changes."""
        sent: int | None = None
        while True:
            status = self._status(name)
            if status != sent:
                await context.write(Status(status=status).SerializeToString())
                sent = status
            await asyncio.sleep(WATCH_S)

    async def _named(self, context: Any) -> str:
        request = parse_message(health_pb2.HealthCheckRequest, await self._reader.only(context))
        return str(request.service)

    def _status(self, name: str) -> int:
        if name not in ("", SERVICE):
            return int(Status.SERVICE_UNKNOWN)
        return int(Status.SERVING if self._models.why_unready() is None else Status.NOT_SERVING)
