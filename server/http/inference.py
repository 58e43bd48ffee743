"""A hot endpoint as plain ASGI: what every server can call, and what answers where `direct.py` does not."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from server.engine import Engine
from server.http.body import read_body
from server.http.call import Call, Form
from server.http.gate import Gate
from server.http.options import RequestOptions

GONE = "polyrec.gone"
"""Key of a scope under which a request leaves what to call when its client has gone."""
ARRIVED = "polyrec.arrived"
"""Key of a scope under which the protocol leaves when the last of a request can have arrived, on `clock`."""


class Inference:
    """The endpoint of one form."""

    def __init__(self, engine: Engine, form: Form) -> None:
        self._engine = engine
        self._form = form
        self.gate = Gate(engine, form.endpoint)

    def can_turn_away(self, options: RequestOptions, encoding: str | None) -> bool:
        """Whether the gate may judge requests with that head: it must know their size and options."""
        return not (options.priority or options.required or self._form.has_options or encoding)

    def call(self, scope: Scope, options: RequestOptions | None = None, judged: bool = False) -> Call:
        """A request whose headers are there. scope: of ASGI. options, judged: see `Call`."""
        return Call(self._engine, self._form, scope, options, judged)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self.call(scope)
        try:
            body = await read_body(scope["headers"], receive, call.limit)
            query = call.ask(body, scope.get(ARRIVED))
            scope[GONE] = call.gone
            reply = call.reply(await query.payload.answer)
            await reply(scope, receive, send)
        except asyncio.CancelledError:
            call.cancelled()
            raise
        except Exception as e:
            refused = call.refused(e)
            if refused is not None:
                await refused(scope, receive, send)
        else:
            call.ended(reply.status)
