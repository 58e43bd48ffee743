"""Implements gRPC server reflection, with which tools such as grpcurl find services and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, aio

from polyrec.server.errors import RequestError
from polyrec.server.grpc.calls import abort
from polyrec.server.grpc.health import HEALTH
from polyrec.server.grpc.infer_codec import parse_message
from polyrec.server.grpc.limits.streams import OpenStreams
from polyrec.server.grpc.messages import POOL, SERVICE

NAMES = (SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
"""Both versions of the service; their messages are identical on the wire."""


class Reflection:
    """The reflection service."""

    def __init__(self, streams: OpenStreams) -> None:
        self._streams = streams
        for module in (health_pb2, reflection_pb2):
            file = FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(file)
            POOL.Add(file)
        self._servicer = aio.ReflectionServicer((SERVICE, HEALTH, *NAMES[:1]), pool=POOL)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Returns the handlers of both versions."""
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        return [
            grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler}) for name in NAMES
        ]

    async def _stream(self, unused: Any, context: Any) -> None:
        try:
            await self._streams.run(self._answer(context))
        except RequestError as e:
            await abort(context, e)

    async def _answer(self, context: Any) -> None:
        async for response in self._servicer.ServerReflectionInfo(_requests(context), context):
            await context.write(response.SerializeToString())


async def _requests(context: Any) -> AsyncIterator[Any]:
    while (message := await context.read()) is not grpc.aio.EOF:
        yield parse_message(reflection_pb2.ServerReflectionRequest, bytes(message))
