"""One call of ModelInfer: admit -> message -> submit -> answer -> response, by callbacks and without a task.

The counterpart of HotRequest (server/http/connection/hot_request.py) for gRPC.
"""

from __future__ import annotations

from collections.abc import Callable

from grpc import StatusCode
from starlette.types import Scope

from polyrec.server.dispatch.answer import Answer, Pending
from polyrec.server.dispatch.dispatcher import clock
from polyrec.server.errors import NotReady
from polyrec.server.grpc.infer_codec import GrpcInferCodec
from polyrec.server.grpc.transport.calls import deadline_s, end_canceled, end_of, fail, id_metadata
from polyrec.server.grpc.transport.core import IncomingCall
from polyrec.server.grpc.transport.reading import MessageReader
from polyrec.server.http.call import Call
from polyrec.server.repository.repository import ModelRepository

STOPPED = "the server ends before this could be answered; ask another"


class InferCall:
    """One call. scope: as an ASGI scope. is_alone: whether nothing else is known to wait for the loop."""

    __slots__ = ("_call", "_codec", "_is_alone", "_models", "_reader", "_request", "_scope")

    def __init__(
        self,
        call: IncomingCall,
        scope: Scope,
        models: ModelRepository,
        reader: MessageReader,
        is_alone: Callable[[], bool],
    ) -> None:
        self._call = call
        self._scope = scope
        self._models = models
        self._reader = reader
        self._is_alone = is_alone
        self._codec = GrpcInferCodec()
        self._request = Call(models.default, self._codec, scope, deadline_s(call), deadline_is_budget=True)

    def begin(self) -> None:
        """Admits the call, and has it answered."""
        self._call.on_cancel = self._cancel
        try:
            self._request.admit()
            self._reader.read(self._call, self._submit)
        except Exception as e:
            self._fail(e)

    def _submit(self, body: bytes | Exception) -> None:
        """Queues the query of a message."""
        call = self._request
        if self._call.is_canceled or self._call.is_finished:
            return
        if isinstance(body, Exception):
            self._fail(body)
            return
        try:
            begun_s = clock()
            call.address(self._codec.read(body, self._models), begun_s)
            call.submit(body).payload.answer.listen(self._answered)
            if self._is_alone():
                call.dispatch()
        except Exception as e:
            self._fail(e)

    def _answered(self, pending: Pending) -> None:
        """Sends the answer."""
        call, outcome = self._request, pending.outcome
        if self._call.is_canceled or self._call.is_finished:
            return
        if isinstance(outcome, Exception):
            try:
                query = call.retry(outcome)
            except Exception as e:
                query, outcome = None, e
            if query is not None:
                query.payload.answer.listen(self._answered)
                return
        if not isinstance(outcome, Answer):
            self._fail(outcome if isinstance(outcome, Exception) else NotReady(STOPPED))
            return
        try:
            reply = call.reply(outcome)
        except Exception as e:
            self._fail(e)
            return
        trailing = [(name.decode(), value.decode()) for name, value in reply.headers]
        self._call.finish(StatusCode.OK, "", (*trailing, *id_metadata(self._scope)), reply.body)
        call.finish(reply.status)

    def _fail(self, error: Exception) -> None:
        """Counts an error, and ends the call with it."""
        self._request.reject(error)
        fail(self._call, error, id_metadata(self._scope))

    def _cancel(self) -> None:
        """Cancels the query: the client has left, or the deadline has passed."""
        self._request.abandon(end_of(self._call))
        end_canceled(self._call)
