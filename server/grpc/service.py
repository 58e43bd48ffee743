"""`inference.GRPCInferenceService`: inference, health, metadata, configuration and statistics over gRPC.

    message -> admission (token, rate) -> GrpcInferCodec -> dispatcher -> GrpcInferCodec -> response

Requests run through the same `Call` class as HTTP (server/http/call.py), so access, options, deadlines,
errors and metrics are the same. Methods of the definition that are not implemented (shared memory, traces,
log settings) return UNIMPLEMENTED. All handlers are streaming handlers, even for unary calls, so that they
can end a call before its message is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from polyrec.models.version import code_version
from polyrec.server.clock import clock
from polyrec.server.errors import Forbidden, Misdirected, NotFound, NotReady, RequestError
from polyrec.server.grpc.calls import abort, deadline_s, end_of, id_metadata, is_canceled, scope_of
from polyrec.server.grpc.infer_codec import GrpcInferCodec, parse_message
from polyrec.server.grpc.infer_stream import InferStream
from polyrec.server.grpc.limits.reading import MessageReader
from polyrec.server.grpc.limits.streams import OpenStreams
from polyrec.server.grpc.messages import SERVICE, message_class, message_of
from polyrec.server.http.call import Call
from polyrec.server.http.oip import EXTENSIONS, SERVER, configuration, metadata, statistics
from polyrec.server.repository.repository import ModelRepository
from polyrec.server.repository.routes import model_states

log = logging.getLogger("polyrec.grpc")

STOPPED = "the server is shutting down and could not answer; retry on another"
Document = Callable[[Any], Any]
"""Converts a request message to a response message. May raise RequestError."""


class InferenceService:
    """The inference service of one server.

    secure: whether connections are encrypted.
    write_s: timeout for a client to accept a stream's response.
    max_bytes: maximum size of a message.
    is_shared: whether sibling processes serve the same port, so that a call reaches a random one.
    """

    def __init__(
        self,
        models: ModelRepository,
        reader: MessageReader,
        streams: OpenStreams,
        secure: bool,
        write_s: float,
        max_bytes: int,
        is_shared: bool,
    ) -> None:
        self._models = models
        self._reader = reader
        self._streams = streams
        self._write_s = write_s
        self._max_bytes = max_bytes
        self._secure = secure
        self._is_shared = is_shared

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the handler of the service's methods."""
        documents: dict[str, Document] = {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": self._models.why_unready() is None},
            "ServerMetadata": lambda _: _server_metadata(),
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": _refuse_loading,
            "RepositoryModelUnload": _refuse_loading,
        }
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(self._answering(name, make))
            for name, make in documents.items()
        }
        handlers["ModelInfer"] = grpc.stream_unary_rpc_method_handler(self._infer)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _infer(self, unused: Any, context: Any) -> bytes:
        scope = scope_of(context, f"/{SERVICE}/ModelInfer", self._secure)
        codec = GrpcInferCodec()
        call = Call(self._models.default, codec, scope, deadline_s(context), deadline_is_budget=True)
        error: Exception
        try:
            call.admit()
            body = await self._reader.only(context)
            begun_s = clock()
            call.use_engine(codec.read(body, self._models), begun_s)
            query = call.submit(body)
            reply = call.reply(await call.answer(query))
        except asyncio.CancelledError:
            if is_canceled():
                call.abandon(end_of(context))
                raise
            error = NotReady(STOPPED)
        except Exception as e:
            error = e
        else:
            trailing = ((n.decode(), v.decode()) for n, v in reply.headers)
            context.set_trailing_metadata((*trailing, *id_metadata(scope)))
            call.finish(reply.status)
            return reply.body
        call.reject(error)
        await abort(context, error, id_metadata(scope))

    async def _stream(self, unused: Any, context: Any) -> None:
        scope = scope_of(context, f"/{SERVICE}/ModelStreamInfer", self._secure)
        try:
            stream = InferStream(self._models, self._streams, context, scope, self._write_s, self._max_bytes)
            await stream.run()
        except Exception as e:
            if not isinstance(e, RequestError):
                log.error("ModelStreamInfer failed", exc_info=e)
            await abort(context, e)

    def _answering(self, name: str, make: Document) -> Callable[[Any, Any], Coroutine[Any, Any, bytes]]:
        """Returns the handler of a method whose response `make` creates."""
        request, response = f"{name}Request", f"{name}Response"
        kind = message_class(request)

        async def answer(unused: Any, context: Any) -> bytes:
            try:
                message = parse_message(kind, await self._reader.only(context))
                body: bytes = message_of(response, make(message)).SerializeToString()
            except Exception as e:
                if not isinstance(e, RequestError):
                    log.error("%s failed", name, exc_info=e)
                await abort(context, e)
            return body

        return answer

    def _model_ready(self, request: Any) -> dict[str, Any]:
        try:
            engine = self._models.find(request.name, request.version or None)
        except (NotFound, NotReady):
            return {"ready": False}
        return {"ready": engine.why_unready() is None}

    def _model_metadata(self, request: Any) -> dict[str, Any]:
        return metadata(self._models.find(request.name, request.version or None).serving)

    def _model_config(self, request: Any) -> dict[str, Any]:
        return {"config": configuration(self._models.find(request.name, request.version or None))}

    def _statistics(self, request: Any) -> dict[str, Any]:
        if self._is_shared:
            raise Misdirected(
                "this port is shared by several processes: ask each for its statistics at its own HTTP port"
            )
        if not request.name:
            return statistics(self._models.engines)
        return statistics((self._models.find(request.name, request.version or None),))

    def _index(self, request: Any) -> dict[str, Any]:
        states = model_states(self._models)
        return {"models": [s for s in states if s["state"] == "READY" or not request.ready]}


def _server_metadata() -> dict[str, Any]:
    return {"name": SERVER, "version": code_version(), "extensions": list(EXTENSIONS)}


def _refuse_loading(request: Any) -> Any:
    raise Forbidden("loading and unloading models over this interface is not allowed")
