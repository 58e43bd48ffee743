"""Serves one stream of inference requests (ModelStreamInfer).

Every message is an independent request with its own admission, budget and error. Responses are in the order
of requests. At most MAX_IN_FLIGHT requests of a stream are read but unanswered, and no more are read once
their total size reaches that of the largest allowed message. So a stream holds less than two of the largest
messages; a client that sends more, or does not read responses, is slowed down by HTTP/2 flow control.

An error of one request is reported as `error_message` of its response, whose `infer_response` has the
request's id, and the stream continues. Only a request without a valid token ends the stream. The stream's
deadline caps the budget of each request but is not the default budget.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import grpc.aio
from starlette.types import Scope

from polyrec.planner.routing.query import Query
from polyrec.server.clock import clock
from polyrec.server.errors import NotReady, RequestError, TooSlow, Unauthorized
from polyrec.server.grpc.calls import deadline_s, end_of, is_canceled
from polyrec.server.grpc.infer_codec import GrpcInferCodec, parse_request
from polyrec.server.grpc.limits.streams import STOPPING, OpenStreams
from polyrec.server.grpc.messages import message_class
from polyrec.server.grpc.status import status_of
from polyrec.server.http.call import Call
from polyrec.server.repository.repository import ModelRepository

MAX_IN_FLIGHT = 64
RESPONSE = message_class("ModelStreamInferResponse")


class _Request(NamedTuple):
    """A request that was read: its query, or the error with which it was rejected (and recorded).

    id: used in an error response.
    bytes: size of its message, to which rows may refer.
    """

    call: Call
    query: Query | None
    error: Exception | None
    id: str
    bytes: int


class InferStream:
    """One stream.

    scope: scope of the call.
    write_s: timeout for the client to accept a response.
    max_bytes: maximum size of a message, and total size of unanswered messages from which no more are read.
    """

    def __init__(
        self,
        models: ModelRepository,
        streams: OpenStreams,
        context: Any,
        scope: Scope,
        write_s: float,
        max_bytes: int,
    ) -> None:
        self._models = models
        self._streams = streams
        self._context = context
        self._scope = scope
        self._write_s = write_s
        self._max_bytes = max_bytes
        self._unanswered = self._unanswered_bytes = 0
        self._answered = asyncio.Event()
        self._requests: asyncio.Queue[_Request | None] = asyncio.Queue()

    async def run(self) -> None:
        """Answers requests until the client ends the stream. Raises RequestError if it ends early."""
        reading = asyncio.create_task(self._read())
        try:
            with self._streams.opened(reading.cancel) as stream:
                while (request := await self._requests.get()) is not None:
                    self._streams.used(stream)
                    await self._answer(request)
                    self._streams.used(stream)
                    self._unanswered -= 1
                    self._unanswered_bytes -= request.bytes
                    self._answered.set()
            await asyncio.wait((reading,))
            if stream.ended_by is not None and reading.cancelled():
                raise stream.ended_by
            reading.result()
        finally:
            reading.cancel()
            while not self._requests.empty():
                left = self._requests.get_nowait()
                if left is not None and left.query is not None:
                    left.call.abandon(end_of(self._context))

    async def _read(self) -> None:
        """Reads requests and queues them; None marks the end."""
        try:
            while True:
                while self._unanswered >= MAX_IN_FLIGHT or self._unanswered_bytes >= self._max_bytes:
                    self._answered.clear()
                    await self._answered.wait()
                message = await self._context.read()
                if message is grpc.aio.EOF:
                    break
                self._unanswered += 1
                self._unanswered_bytes += len(message)
                self._requests.put_nowait(self._begin(bytes(message)))
        finally:
            self._requests.put_nowait(None)

    def _begin(self, message: bytes) -> _Request:
        codec = GrpcInferCodec()
        call = Call(self._models.default, codec, self._scope, deadline_s(self._context))
        try:
            call.admit()
            begun_s = clock()
            call.use_engine(codec.read(message, self._models), begun_s)
            return _Request(call, call.submit(message), None, "", len(message))
        except Exception as e:
            call.reject(e)
            if isinstance(e, Unauthorized):
                raise
            return _Request(call, None, e, self._id_of(message), len(message))

    async def _answer(self, request: _Request) -> None:
        """Writes the response to a request, and records how it ended."""
        response, error = await self._response(request)
        try:
            async with asyncio.timeout(self._write_s):
                await self._context.write(response.SerializeToString())
        except TimeoutError:
            self._models.default.metrics.limited.labels("grpc_write").inc()
            too_slow = TooSlow("grpc_write", f"a response was not read in {self._write_s:g} s")
            if error is None:
                request.call.reject(too_slow)
            raise too_slow from None
        except BaseException:
            if error is None:
                request.call.reject(end_of(self._context))
            raise
        if error is None:
            request.call.finish(200)

    async def _response(self, request: _Request) -> tuple[Any, Exception | None]:
        """Waits for the answer; returns the response, and the error that it reports, which is recorded."""
        call, error = request.call, request.error
        response = RESPONSE()
        if request.query is not None:
            try:
                reply = call.reply(await call.answer(request.query))
                response.infer_response.MergeFromString(reply.body)
            except asyncio.CancelledError:
                if is_canceled():
                    call.abandon(end_of(self._context))
                    raise
                error = NotReady(STOPPING)
                call.reject(error)
            except Exception as e:
                error = e
                call.reject(error)
        if error is not None:
            status = status_of(error)
            response.error_message = f"[StatusCode.{status.code.name}] {status.message}"
            response.infer_response.id = request.id
        return response, error

    def _id_of(self, message: bytes) -> str:
        """Returns the id of a possibly malformed request."""
        try:
            return str(parse_request(self._models, message).id)
        except RequestError:
            return ""
