"""`inference.GRPCInferenceService`: inference, health, metadata, configuration and statistics over gRPC.

    message -> admission (token, rate) -> GrpcInferCodec -> dispatcher -> GrpcInferCodec -> response

Calls are the `Call`s of the HTTP endpoints, so access, options, deadlines, errors and counters are the same.
Methods of the definition that are not here (shared memory, traces, log settings) are UNIMPLEMENTED. A call
can end before its message is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from polyrec.models.bundle.bundle import code_version
from polyrec.server.errors import Forbidden, NotFound, NotReady
from polyrec.server.grpc.infer_call import InferCall
from polyrec.server.grpc.infer_codec import parse_message
from polyrec.server.grpc.infer_stream import InferStream
from polyrec.server.grpc.messages import SERVICE, message_class, message_of
from polyrec.server.grpc.transport.calls import scope_of
from polyrec.server.grpc.transport.core import IncomingCall
from polyrec.server.grpc.transport.methods import Method
from polyrec.server.grpc.transport.reading import MessageReader
from polyrec.server.grpc.transport.streams import OpenStreams
from polyrec.server.http.oip import EXTENSIONS, SERVER, configuration, metadata, statistics
from polyrec.server.repository.repository import ModelRepository
from polyrec.server.repository.routes import model_states

INFER = f"/{SERVICE}/ModelInfer"
Document = Callable[[Any], Any]
"""Makes a response of a request, both messages. May raise RequestError."""


class InferenceService:
    """The service of the models of one server.

    secure: whether connections are encrypted. write_s: time in which a client must take a stream's response.
    """

    def __init__(
        self,
        models: ModelRepository,
        reader: MessageReader,
        streams: OpenStreams,
        secure: bool,
        write_s: float,
    ) -> None:
        self._models = models
        self._reader = reader
        self._streams = streams
        self._write_s = write_s
        self._secure = secure

    @property
    def methods(self) -> Mapping[str, Method]:
        """Its methods, other than `infer`."""
        documents: dict[str, Document] = {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": self._models.unready() is None},
            "ServerMetadata": lambda _: _server_metadata(),
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": _no_loading,
            "RepositoryModelUnload": _no_loading,
        }
        methods = {f"/{SERVICE}/{name}": self._answering(name, make) for name, make in documents.items()}
        return {**methods, f"/{SERVICE}/ModelStreamInfer": self._stream}

    def infer(self, call: IncomingCall, is_alone: Callable[[], bool]) -> None:
        """Has a call of ModelInfer answered. is_alone: whether nothing else is known to wait for the loop."""
        scope = scope_of(call, INFER, self._secure)
        InferCall(call, scope, self._models, self._reader, is_alone).begin()

    async def _stream(self, call: IncomingCall) -> None:
        scope = scope_of(call, call.method, self._secure)
        await InferStream(self._models, self._streams, call, scope, self._write_s).run()

    def _answering(self, name: str, make: Document) -> Method:
        """The method whose response is a document."""
        request, response = f"{name}Request", f"{name}Response"
        kind = message_class(request)

        async def answer(call: IncomingCall) -> bytes:
            message = parse_message(kind, await self._reader.only(call))
            return bytes(message_of(response, make(message)).SerializeToString())

        return answer

    def _model_ready(self, request: Any) -> dict[str, Any]:
        try:
            engine = self._models.find(request.name, request.version or None)
        except (NotFound, NotReady):
            return {"ready": False}
        return {"ready": engine.unready() is None}

    def _model_metadata(self, request: Any) -> dict[str, Any]:
        return metadata(self._models.find(request.name, request.version or None).serving)

    def _model_config(self, request: Any) -> dict[str, Any]:
        return {"config": configuration(self._models.find(request.name, request.version or None))}

    def _statistics(self, request: Any) -> dict[str, Any]:
        if not request.name:
            return statistics(self._models.engines)
        return statistics((self._models.find(request.name, request.version or None),))

    def _index(self, request: Any) -> dict[str, Any]:
        states = model_states(self._models)
        return {"models": [s for s in states if s["state"] == "READY" or not request.ready]}


def _server_metadata() -> dict[str, Any]:
    return {"name": SERVER, "version": code_version(), "extensions": list(EXTENSIONS)}


def _no_loading(request: Any) -> Any:
    raise Forbidden("loading and unloading models over this interface is not allowed")
