"""One request of a hot endpoint, from its headers to its reply: every phase timed, every end counted.

The latency budget and the other wishes of the client, the dispatcher, the errors and the counters are the
same for /v1/predict, /v1/rank and the inference protocol. What differs is a `Form`: how a body becomes rows
and how probabilities become a body. Here is no I/O: `server/http/direct.py` reads and writes on a connection,
`server/http/inference.py` by ASGI.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Scope

from models.errors import FeatureError
from planner.routing.query import Query
from server.answer import Answer
from server.counting import KEPT, EndpointMetrics
from server.dispatcher import clock
from server.engine import Engine
from server.errors import RequestError, refusal
from server.http.body import ClientGone
from server.http.reply import Reply
from server.http.wishes import Wishes, wishes_of
from server.rows import Rows
from server.serving import OpenPath, Serving

log = logging.getLogger("polyrec.http")


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

    @property
    def has_wishes(self) -> bool:
        """Whether bodies may have a budget, a priority or a quality of their own."""
        ...

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        """Raises RequestError or FeatureError."""
        ...

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        """The answer, with the header of the path that gave it."""
        ...


class Call:
    """ask -> reply -> ended, or `refused` or `cancelled` wherever it comes to that."""

    __slots__ = (
        "_answer",
        "_answered_s",
        "_arrival_s",
        "_begun_s",
        "_budget_s",
        "_counters",
        "_engine",
        "_form",
        "_judged",
        "_outcomes",
        "_parsed",
        "_parsed_s",
        "_path",
        "_query",
        "_rows",
        "_serving",
        "_trace",
        "_wishes",
        "_written_s",
        "scope",
    )
    _answer: Answer
    _counters: EndpointMetrics
    _parsed: Parsed
    _path: OpenPath

    def __init__(
        self, engine: Engine, form: Form, scope: Scope, wishes: Wishes | None = None, judged: bool = False
    ) -> None:
        """wishes: of its headers, if they were read before. judged: the gate has let it in."""
        self.scope = scope
        self._engine = engine
        self._form = form
        self._wishes = wishes
        self._judged = judged
        self._serving: Serving | None = None
        self._query: Query | None = None
        self._rows = 0
        self._outcomes = engine.without_path[form.endpoint]
        self._budget_s = self._begun_s = self._parsed_s = self._answered_s = self._written_s = 0.0
        self._arrival_s = clock()
        tracer = engine.tracer
        self._trace = None if tracer is None else tracer.begin(scope, form.endpoint)

    @property
    def limit(self) -> int:
        """Bytes that the body may have. Raises NotReady."""
        serving = self._serving = self._engine.serving
        return serving.max_body_bytes

    def ask(self, body: bytes, arrived_s: float | None = None) -> Query:
        """Parses the body, decompressed, and queues the query: `query.payload.answer` is to be waited on.

        arrived_s: when the last of the request can have arrived, None for now. Raises RequestError or
        FeatureError.
        """
        # From here on the time is ours: a slow client does not spend its budget on sending.
        self._begun_s = clock()
        self._arrival_s = self._begun_s if arrived_s is None else arrived_s
        # Not what was served when the headers came: another plan may have been loaded since.
        serving = self._serving = self._engine.serving
        dispatcher = serving.dispatcher
        form = self._form
        budget_s, priority, required = self._wishes or wishes_of(self.scope["headers"])
        if not (self._judged or priority or required or form.has_wishes):
            self._budget_s = budget_s or self._engine.default_budget_s
            dispatcher.turned_away(self._arrival_s, self._budget_s, len(body))
        parsed = self._parsed = form.parse(serving, self.scope, body)
        self._rows = parsed.rows.rows
        self._budget_s = budget_s or parsed.budget_s or self._engine.default_budget_s
        self._parsed_s = clock()
        query = self._query = dispatcher.ask(
            parsed.rows,
            self._arrival_s,
            self._budget_s,
            parsed.priority if priority is None else priority,
            parsed.required if required is None else required,
            self._trace,
            len(body),
        )
        return query

    def reply(self, answer: Answer) -> Reply:
        """The answer as it goes back."""
        self._answered_s = clock()
        serving = self._serving
        assert serving is not None
        self._answer = answer
        self._path = path = serving.paths[answer.path]
        self._counters = path.endpoints[self._form.endpoint]
        self._outcomes = self._counters.outcomes
        reply = self._form.write(serving, self._parsed, answer, path)
        self._written_s = clock()
        return reply

    def ended(self, status: int) -> None:
        """The reply has gone to the connection."""
        end_s = clock()
        serving, answer = self._serving, self._answer
        assert serving is not None
        took_s = end_s - self._arrival_s
        in_time = took_s <= self._budget_s
        parse_s, serialise_s = self._parsed_s - self._begun_s, self._written_s - self._answered_s
        if self._trace is not None:
            outcome = KEPT if in_time else "late"
            moments, path = self._moments(end_s), self._path.name
            self._trace.end(moments, outcome, status, self._rows, self._budget_s, path, answer.reason)
        self._counters.answered(
            in_time, took_s, self._rows, parse_s, answer.queue_s, serialise_s, answer.reason
        )
        serving.statistics.succeeded(
            self._rows, took_s, answer.queue_s, parse_s, answer.execute_s, serialise_s
        )

    def refused(self, error: Exception) -> Reply | None:
        """What goes back instead of an answer; None if nobody would read it."""
        refused = refusal(error)
        if not isinstance(error, RequestError | FeatureError):
            log.error("%s failed", self._form.endpoint, exc_info=error)
        gone = isinstance(error, ClientGone)
        took_s = self._failed(refused.outcome, 0 if gone else refused.status)
        if self._serving is not None:
            self._serving.statistics.failed(took_s)
        return None if gone else Reply(refused.body, refused.status, headers=refused.headers)

    def cancelled(self) -> None:
        """The server ends before the answer is there."""
        self._failed("cancelled", 0)

    def gone(self) -> None:
        """The client closed the connection: a query leaves the queue, and its future raises ClientGone."""
        error = ClientGone("the client closed the connection")
        if self._query is None:
            self.refused(error)
        else:
            assert self._serving is not None
            self._serving.dispatcher.gone(self._query, error)

    def _failed(self, outcome: str, status: int) -> float:
        end_s = clock()
        took_s = end_s - self._arrival_s
        self._outcomes.finished(outcome, took_s)
        if self._trace is not None:
            self._trace.end(self._moments(end_s), outcome, status, self._rows, self._budget_s)
        return took_s

    def _moments(self, end_s: float) -> tuple[float, float, float, float, float, float]:
        return (
            self._arrival_s,
            self._begun_s,
            self._parsed_s,
            self._answered_s,
            self._written_s,
            end_s,
        )
