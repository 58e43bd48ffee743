"""An endpoint that connections answer without ASGI, by early rejections and `Call` objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from starlette.types import Receive, Scope, Send

from polyrec.planner.routing.admission.arrival import Arrival
from polyrec.planner.routing.query import RejectReason
from polyrec.server.app.engine import Engine, LifecycleState
from polyrec.server.app.serving import Serving
from polyrec.server.clock import clock
from polyrec.server.dispatch.dispatcher import rejection
from polyrec.server.errors import Malformed, TooLarge, error_response
from polyrec.server.http.call import Call, EndpointCodec
from polyrec.server.http.connection.access_log import ANSWERED_BY
from polyrec.server.http.connection.body import Headers, read_body
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.options import BUDGET, PRIORITY, QUALITY, parse_budget_s
from polyrec.server.tracing.trace import Moments


class HotCodec(EndpointCodec, Protocol):
    """A codec that can also count a body's rows without parsing it."""

    def count_rows(self, serving: Serving, body: bytes) -> int | None:
        """Returns the rows of a complete body, None if unknown or if it may have options. Raises TooLarge."""
        ...


class HotEndpoint:
    """An endpoint whose requests a connection may answer without ASGI; also usable as an ASGI application."""

    def __init__(self, engine: Engine, codec: HotCodec) -> None:
        self._engine = engine
        self._codec = codec

    def reject_early(
        self,
        headers: Headers,
        size: int | None,
        scope: Callable[[], Scope],
        arrival: Arrival | None = None,
        body: bytes = b"",
    ) -> Reply | None:
        """Returns the rejection of a request before it is parsed, None if it may be processed.

        An overloaded server spends most of its time on rejections, and this costs a fraction of a `Call` with
        the same result. Never rejected here are requests with options that depend on the client's rights
        (priority, quality), and those of clients that are yet to be authenticated.

        size: bytes of the body, None if unknown.
        scope: creates the ASGI scope, for traces.
        arrival: estimated arrival of the head, None for now.
        body: the part of the body that has arrived.
        """
        engine, codec = self._engine, self._codec
        if size is None or engine.state is not LifecycleState.READY:
            return None
        serving = engine.serving
        budget_s = self._ordinary_budget_s(headers)
        if budget_s is None or size > serving.max_body_bytes:
            return None
        now_s = clock()
        dispatcher = serving.dispatcher
        arrival_s = (
            now_s if arrival is None else arrival.budget_start_s(budget_s, now_s, dispatcher.disturbed)
        )
        is_late = arrival_s + budget_s <= now_s
        if not (is_late or dispatcher.overloaded):
            return None
        if engine.access.needs_tokens and not engine.access.recognizes(headers, scope().get("client")):
            return None
        rows = None
        if codec.has_options or not is_late:
            rows = _rows(codec, serving, body, size)
            if rows is None:
                return None
        rejected = dispatcher.reject_early(arrival_s, budget_s, rows, now_s)
        if rejected is None:
            return None
        outcome, reply = _rejection(rejected.reason, rejected.retry_header_s, budget_s)
        engine.outcomes_without_path[codec.endpoint].finished(outcome, now_s - arrival_s)
        serving.statistics.failed(now_s - arrival_s)
        if engine.tracer is not None:
            trace = engine.tracer.begin(scope(), codec.endpoint)
            if trace is not None:
                moments = Moments(arrival_s, ended_s=now_s)
                trace.end(moments, outcome, reply.status, 0, budget_s)
        return reply

    def _ordinary_budget_s(self, headers: Headers) -> float | None:
        """Returns the budget in seconds, None if there are other options, compression or a bad budget."""
        budget_s = self._engine.default_budget_s
        for name, value in headers:
            if name == BUDGET:
                try:
                    budget_s = min(parse_budget_s(value), self._engine.max_budget_s)
                except Malformed:
                    return None
            elif name in (PRIORITY, QUALITY, b"content-encoding"):
                return None
        return budget_s

    def call(self, scope: Scope) -> Call:
        """Starts the call for a request whose head has arrived. scope: its ASGI scope."""
        return Call(self._engine, self._codec, scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self.call(scope)
        watching: asyncio.Task[None] | None = None
        try:
            limit = call.admit()
            query = call.submit(await read_body(scope["headers"], receive, limit))
            watching = asyncio.create_task(_watch(receive, call))
            reply = call.reply(await call.answer(query))
            scope[ANSWERED_BY] = call.answered_by
            await reply(scope, receive, send)
        except asyncio.CancelledError:
            call.cancel()
            raise
        except Exception as e:
            rejected = call.reject(e)
            if rejected is not None:
                await rejected(scope, receive, send)
        else:
            call.finish(reply.status)
        finally:
            if watching is not None:
                watching.cancel()


def _rows(codec: HotCodec, serving: Serving, body: bytes, size: int) -> int | None:
    """Counts the rows of a body; None if it is incomplete, or to be parsed for its rows, options or error."""
    if len(body) < size:
        return None
    try:
        rows = codec.count_rows(serving, body[:size])
    except TooLarge:
        return None
    return rows if rows is not None and 0 < rows <= serving.plan.limits.max_request_rows else None


@lru_cache(maxsize=256)
def _rejection(reason: RejectReason, retry_after_s: int, budget_s: float) -> tuple[str, Reply]:
    """Returns outcome and reply of an early rejection. Cached, since there are few distinct ones."""
    response = error_response(rejection(reason, retry_after_s, budget_s))
    return response.outcome, Reply(response.body, response.status, headers=response.headers)


async def _watch(receive: Receive, call: Call) -> None:
    """Cancels the query if the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    call.disconnect()
