"""gRPC's server reflection, by which tools such as grpcurl find services and their messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, aio

from polyrec.server.grpc.health import HEALTH
from polyrec.server.grpc.infer_codec import parse_message
from polyrec.server.grpc.messages import POOL, SERVICE
from polyrec.server.grpc.transport.core import IncomingCall
from polyrec.server.grpc.transport.methods import Method
from polyrec.server.grpc.transport.streams import OpenStreams

NAMES = (SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
"""Both versions of the service; their messages are equal on the wire."""


class Reflection:
    """The reflection service."""

    def __init__(self, streams: OpenStreams) -> None:
        self._streams = streams
        for module in (health_pb2, reflection_pb2):
            file = FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(file)
            POOL.Add(file)
        self._servicer = aio.ReflectionServicer((SERVICE, HEALTH, *NAMES[:1]), pool=POOL)

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods of both versions."""
        return {f"/{name}/ServerReflectionInfo": self._stream for name in NAMES}

    async def _stream(self, call: IncomingCall) -> None:
        await self._streams.run(self._answer(call))

    async def _answer(self, call: IncomingCall) -> None:
        async for response in self._servicer.ServerReflectionInfo(_requests(call), None):
            await call.write(response.SerializeToString())


async def _requests(call: IncomingCall) -> AsyncIterator[Any]:
    while (message := await call.read()) is not None:
        yield parse_message(reflection_pb2.ServerReflectionRequest, message)
