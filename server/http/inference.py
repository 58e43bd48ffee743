"""One hot endpoint: a request in, its probabilities out, every phase timed.

Reading the body, the latency budget and the other wishes of the client, the dispatcher, the errors and
the counters are the same for /v1/predict, /v1/rank and the inference protocol. What differs is a `Form`:
how a body becomes rows and how probabilities become a body. This is plain ASGI: no dependency
injection, no validation but the form's own.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from models.errors import FeatureError
from planner.routing.query import Query
from server.answer import Answer
from server.counting import KEPT
from server.dispatcher import Dispatcher, clock
from server.engine import Engine
from server.errors import Malformed, RequestError, refusal
from server.http.body import ClientGone, Headers, read_body
from server.http.reply import Reply
from server.rows import Rows
from server.serving import OpenPath, Serving

log = logging.getLogger("polyrec.http")

BUDGET = b"x-latency-budget-ms"
PRIORITY = b"x-polyrec-priority"
QUALITY = b"x-polyrec-quality"
WISHES = frozenset({BUDGET, PRIORITY, QUALITY})

GONE = "polyrec.gone"
"""Key of a scope under which the request leaves what to call when its client has gone."""
ARRIVED = "polyrec.arrived"
"""Key of a scope under which the protocol leaves when the last of a request can have arrived, on `clock`."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body that was read. `asked` is what the form needs again to answer; budget_s None: the default.

    priority: 1 is the highest, 0 the lowest. required: only the most accurate path may answer.
    """

    rows: Rows
    asked: Any = None
    budget_s: float | None = None
    priority: int = 0
    required: bool = False


class Form(Protocol):
    """How one endpoint's bodies are read and written."""

    @property
    def endpoint(self) -> str: ...

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        """Raises RequestError or FeatureError."""
        ...

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        """The answer, with the header of the path that gave it."""
        ...


class Inference:
    """The ASGI endpoint of one form."""

    def __init__(self, engine: Engine, form: Form) -> None:
        self._engine = engine
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival_s = clock()
        engine = self._engine
        endpoint = self._form.endpoint
        serving: Serving | None = None
        outcomes = engine.without_path[endpoint]
        tracer = engine.tracer
        trace = None if tracer is None else tracer.begin(scope, endpoint)
        rows, budget_s, begun_s, parsed_s = 0, 0.0, 0.0, 0.0
        try:
            serving = engine.serving
            headers: Headers = scope["headers"]
            body = await read_body(headers, receive, serving.plan.limits.max_body_bytes)
            # From here on the time is ours: a slow client does not spend its budget on sending.
            begun_s = clock()
            arrival_s = scope.get(ARRIVED, begun_s)
            parsed = self._form.parse(serving, scope, body)
            rows = parsed.rows.rows
            budget_s = parsed.budget_s or engine.default_budget_s
            priority, required = parsed.priority, parsed.required
            for name, value in headers:
                if name in WISHES:
                    if name == BUDGET:
                        budget_s = latency_budget_s(value)
                    elif name == PRIORITY:
                        priority = priority_of(value)
                    else:
                        required = quality_is_required(value)
            parsed_s = clock()
            dispatcher = serving.dispatcher
            query = dispatcher.ask(parsed.rows, arrival_s, budget_s, priority, required, trace)
            scope[GONE] = partial(_leave, dispatcher, query)
            answer: Answer = await query.payload.answer
            answered_s = clock()
            path = serving.paths[answer.path]
            counters = path.endpoints[endpoint]
            outcomes = counters.outcomes
            reply = self._form.write(serving, parsed, answer, path)
            written_s = clock()
            await reply(scope, receive, send)
        except asyncio.CancelledError:
            now_s = clock()
            outcomes.finished("cancelled", now_s - arrival_s)
            if trace is not None:
                moments = (arrival_s, begun_s, parsed_s, 0.0, 0.0, now_s)
                trace.end(moments, "cancelled", 0, rows, budget_s)
            raise
        except Exception as e:
            refused = refusal(e)
            if not isinstance(e, RequestError | FeatureError):
                log.exception("%s failed", endpoint)
            took_s = clock() - arrival_s
            outcomes.finished(refused.outcome, took_s)
            if serving is not None:
                serving.statistics.failed(took_s)
            if trace is not None:
                status = 0 if isinstance(e, ClientGone) else refused.status
                moments = (arrival_s, begun_s, parsed_s, 0.0, 0.0, arrival_s + took_s)
                trace.end(moments, refused.outcome, status, rows, budget_s)
            if not isinstance(e, ClientGone):
                await Reply(refused.body, refused.status, headers=refused.headers)(scope, receive, send)
        else:
            took_s = clock() - arrival_s
            parse_s, serialise_s = parsed_s - begun_s, written_s - answered_s
            if trace is not None:
                outcome = KEPT if took_s <= budget_s else "late"
                moments = (arrival_s, begun_s, parsed_s, answered_s, written_s, arrival_s + took_s)
                trace.end(moments, outcome, reply.status, rows, budget_s, path.name, answer.reason)
            counters.answered(
                took_s <= budget_s, took_s, rows, parse_s, answer.queue_s, serialise_s, answer.reason
            )
            serving.statistics.succeeded(rows, took_s, answer.queue_s, parse_s, answer.execute_s, serialise_s)


def _leave(dispatcher: Dispatcher, query: Query) -> None:
    dispatcher.gone(query, ClientGone("the client closed the connection"))


def latency_budget_s(value: bytes, where: str = "header X-Latency-Budget-Ms") -> float:
    """Milliseconds as text -> seconds. Raises Malformed."""
    try:
        budget_ms = float(value)
    except ValueError:
        budget_ms = math.nan
    if not 0 < budget_ms < math.inf:
        text = value[:40].decode("latin-1")
        raise Malformed(f"{where} is '{text}'; it is a number of milliseconds above 0")
    return budget_ms / 1e3


def priority_of(value: bytes) -> int:
    """X-Polyrec-Priority: 1 is the highest, 0 the default and lowest. Raises Malformed."""
    if not value.isdigit() or len(value) > 9:
        text = value[:40].decode("latin-1")
        raise Malformed(
            f"header X-Polyrec-Priority is '{text}'; it is 0 (the default, lowest), 1 (highest) or more"
        )
    return int(value)


def quality_is_required(value: bytes, where: str = "header X-Polyrec-Quality") -> bool:
    """`required` or `any`. Raises Malformed."""
    if value not in (b"required", b"any"):
        text = value[:40].decode("latin-1")
        raise Malformed(f"{where} is '{text}'; it is 'required' or 'any'")
    return value == b"required"
