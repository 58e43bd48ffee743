"""One hot endpoint: a request in, its probabilities out, every phase timed.

Reading the body, choosing the path, the latency budget, the lane, the errors and the counters are the
same for /v1/predict, /v1/rank and the inference protocol. What differs is a `Form`: how a body becomes
rows and how probabilities become a body. This is plain ASGI: no dependency injection, no
validation but the form's own.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from models.batch import F32
from models.errors import FeatureError
from server.engine import Engine, Serving
from server.errors import Malformed, RequestError, refusal
from server.http.body import ClientGone, Headers, header, read_body
from server.http.reply import Reply
from server.lane import clock
from server.rows import Rows

log = logging.getLogger("polyrec.http")

BUDGET = b"x-latency-budget-ms"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body that was read. `asked` is what the form needs again to answer; budget_s None: the default."""

    rows: Rows
    asked: Any = None
    budget_s: float | None = None
    priority: int = 0


class Form(Protocol):
    """How one endpoint's bodies are read and written."""

    @property
    def endpoint(self) -> str: ...

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        """Raises RequestError or FeatureError."""
        ...

    def write(self, serving: Serving, parsed: Parsed, probabilities: F32) -> Reply:
        """The answer, without the headers that every answer has."""
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
        try:
            serving = engine.choose()
            counters = serving.endpoints[endpoint]
            outcomes = counters.outcomes
            headers: Headers = scope["headers"]
            body = await read_body(headers, receive, engine.plan.limits.max_body_bytes)
            # From here on the time is ours: a slow client does not spend its budget on sending.
            arrival_s = clock()
            parsed = self._form.parse(serving, scope, body)
            budget_s = parsed.budget_s or engine.default_budget_s
            asked_ms = header(headers, BUDGET)
            if asked_ms is not None:
                budget_s = latency_budget_s(asked_ms)
            parsed_s = clock()
            answer = await serving.lane.ask(parsed.rows, arrival_s, budget_s, parsed.priority)
            answered_s = clock()
            reply = self._form.write(serving, parsed, answer.probabilities)
            written_s = clock()
            await reply(scope, receive, send)
        except asyncio.CancelledError:
            outcomes.finished("cancelled", clock() - arrival_s)
            raise
        except Exception as e:
            refused = refusal(e)
            if not isinstance(e, RequestError | FeatureError):
                log.exception("%s failed", endpoint)
            took_s = clock() - arrival_s
            outcomes.finished(refused.outcome, took_s)
            if serving is not None:
                serving.statistics.failed(took_s)
            if not isinstance(e, ClientGone):
                path = () if serving is None else (serving.header,)
                await Reply(refused.body, refused.status, headers=(*refused.headers, *path))(
                    scope, receive, send
                )
        else:
            took_s = clock() - arrival_s
            outcomes.finished("late" if took_s > budget_s else "ok", took_s)
            parse_s, serialise_s = parsed_s - arrival_s, written_s - answered_s
            rows = parsed.rows.rows
            counters.answered(rows, parse_s, answer.queue_s, serialise_s)
            serving.statistics.succeeded(rows, took_s, answer.queue_s, parse_s, answer.execute_s, serialise_s)


def latency_budget_s(value: bytes) -> float:
    """X-Latency-Budget-Ms -> seconds. Raises Malformed."""
    try:
        budget_ms = float(value)
    except ValueError:
        budget_ms = math.nan
    if not 0 < budget_ms < math.inf:
        text = value[:40].decode("latin-1")
        raise Malformed(f"header X-Latency-Budget-Ms is '{text}'; it is a number of milliseconds above 0")
    return budget_ms / 1e3
