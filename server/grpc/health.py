"""grpc.health.v1.Health: readiness for load balancers, as /readyz.

The statuses of the whole server (the empty name) and of the inference service are all models', which also
changes without an event (a lane dies); a watch therefore asks them every WATCH_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from grpc_health.v1 import health_pb2

from polyrec.server.errors import NotFound, shortened
from polyrec.server.grpc.infer_codec import parse_message
from polyrec.server.grpc.messages import SERVICE
from polyrec.server.grpc.transport.core import IncomingCall
from polyrec.server.grpc.transport.methods import Method
from polyrec.server.grpc.transport.reading import MessageReader
from polyrec.server.grpc.transport.streams import OpenStreams
from polyrec.server.repository.repository import ModelRepository

HEALTH = "grpc.health.v1.Health"
WATCH_S = 0.25
Status = health_pb2.HealthCheckResponse


class HealthService:
    """The health service of the models of one server."""

    def __init__(self, models: ModelRepository, reader: MessageReader, streams: OpenStreams) -> None:
        self._models = models
        self._reader = reader
        self._streams = streams

    @property
    def methods(self) -> Mapping[str, Method]:
        """Its methods."""
        return {f"/{HEALTH}/Check": self._check, f"/{HEALTH}/Watch": self._watch}

    async def _check(self, call: IncomingCall) -> bytes:
        name = await self._named(call)
        status = self._status(name)
        if status == Status.SERVICE_UNKNOWN:
            raise NotFound(f"unknown service '{shortened(name)}'")
        return bytes(Status(status=status).SerializeToString())

    async def _watch(self, call: IncomingCall) -> None:
        await self._streams.run(self._report(call, await self._named(call)))

    async def _report(self, call: IncomingCall, name: str) -> None:
        """Sends the status of a service, and again whenever it changes."""
        sent: int | None = None
        while True:
            status = self._status(name)
            if status != sent:
                await call.write(Status(status=status).SerializeToString())
                sent = status
            await asyncio.sleep(WATCH_S)

    async def _named(self, call: IncomingCall) -> str:
        request = parse_message(health_pb2.HealthCheckRequest, await self._reader.only(call))
        return str(request.service)

    def _status(self, name: str) -> int:
        if name not in ("", SERVICE):
            return int(Status.SERVICE_UNKNOWN)
        return int(Status.SERVING if self._models.unready() is None else Status.NOT_SERVING)
