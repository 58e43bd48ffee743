"""Runs one prediction request from its headers to its reply, and records its times and outcome.

A `Call` does what /v1/predict, /v1/rank and the Open Inference Protocol have in common: access, options,
dispatching, errors and metrics. An `EndpointCodec` parses bodies and writes replies of one endpoint.
`HotRequest` (connection/hot_request.py) runs calls without ASGI, `HotEndpoint` (connection/hot_endpoint.py)
as an ASGI application, and server/grpc runs them for gRPC.
"""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple, Protocol

from starlette.types import Scope

from polyrec.models.errors import FeatureError
from polyrec.planner.routing.admission.arrival import Arrival
from polyrec.planner.routing.query import Query
from polyrec.server.access.access import sender_of
from polyrec.server.access.tokens import Client
from polyrec.server.app.engine import Engine
from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.clock import clock
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.answer import Answer
from polyrec.server.errors import (
    DeadlinePassed,
    Defect,
    Invalid,
    NotReady,
    Overloaded,
    RequestError,
    UnknownModel,
    error_response,
)
from polyrec.server.http.connection.access_log import AnsweredBy
from polyrec.server.http.connection.body import ClientGone
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.options import (
    NO_OPTIONS,
    RequestOptions,
    parse_options,
)
from polyrec.server.metrics.counting import OK, EndpointMetrics
from polyrec.server.metrics.error_budget import SLO_MISSES
from polyrec.server.request_ids import SCOPE_KEY, id_to_join, log_extra
from polyrec.server.rollout.lane_waits import Waits
from polyrec.server.rollout.traffic import ArmGroup, RolloutTraffic, fits
from polyrec.server.tracing.trace import Moments

log = logging.getLogger("polyrec.http")

RETRIED = (Overloaded, NotReady, DeadlinePassed, Defect, Invalid, FeatureError)
"""Errors of a canary after which the stable version answers instead."""
BY_BUDGET = (Overloaded.outcome, DeadlinePassed.outcome)
"""Outcomes which mean that the request's budget was too small for the version."""


class Parsed(NamedTuple):
    """A parsed body.

    reply_form: what the request asks of its reply, for `EndpointCodec.write`.
    options: options found in the body.
    pinned: whether the request names the model's version.
    id: the request's id found in the body.
    """

    rows: Rows
    reply_form: Any = None
    options: RequestOptions = NO_OPTIONS
    pinned: bool = False
    id: str | None = None


class EndpointCodec(Protocol):
    """Parses request bodies and writes replies of one endpoint."""

    @property
    def endpoint(self) -> str: ...

    @property
    def has_options(self) -> bool:
        """Whether bodies may contain options (budget, priority, quality)."""
        ...

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        """Parses a decompressed body. Raises RequestError or FeatureError."""
        ...

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        """Writes the reply, with the header X-Polyrec-Path."""
        ...


class Call:
    """One request: admit -> submit -> reply -> finish; `reject`, `cancel` or `disconnect` may end it earlier.

    scope: the ASGI scope.
    deadline_s: deadline of the enclosing gRPC call, on `clock`; caps the request's budget.
    deadline_is_budget: whether that deadline is also the budget of a request that names none.
    """

    __slots__ = (
        "_answer", "_answered_s", "_arrival_s", "_begun_s", "_budget_s", "_client", "_codec", "_counters",
        "_deadline_is_budget", "_deadline_s", "_engine", "_group", "_logged_body", "_options", "_outcomes",
        "_parsed", "_parsed_by", "_parsed_s", "_path", "_query", "_rows", "_scope", "_serving",
        "_suspect", "_trace", "_waited", "_written_s",
    )  # fmt: skip
    _answer: Answer
    _client: Client
    _counters: EndpointMetrics
    _parsed: Parsed
    _parsed_by: Serving
    _path: OpenPath

    def __init__(
        self,
        engine: Engine,
        codec: EndpointCodec,
        scope: Scope,
        deadline_s: float = math.inf,
        deadline_is_budget: bool = False,
    ) -> None:
        self._scope = scope
        self._deadline_s = deadline_s
        self._deadline_is_budget = deadline_is_budget
        self._engine = engine
        self._codec = codec
        self._options = NO_OPTIONS
        self._serving: Serving | None = None
        self._query: Query | None = None
        self._group: ArmGroup | None = None
        self._suspect: ArmGroup | None = None
        self._waited: Waits = ()
        self._rows = 0
        self._outcomes = engine.outcomes_without_path[codec.endpoint]
        self._budget_s = self._begun_s = self._parsed_s = self._answered_s = self._written_s = 0.0
        self._arrival_s = clock()
        self._logged_body: bytes | None = None
        tracer = engine.tracer
        self._trace = None if tracer is None else tracer.begin(scope, codec.endpoint)

    def admit(self) -> int:
        """Authenticates the client and counts the request against its rate; called before the body is read.

        Returns the maximum bytes of the body. Raises NotReady, Unauthorized, RateLimited, Malformed or
        Forbidden.
        """
        serving = self._serving = self._engine.serving
        scope = self._scope
        headers = scope["headers"]
        self._client = self._engine.access.client(headers, scope.get("client"))
        self._options = self._allowed(parse_options(headers))
        return serving.max_body_bytes

    def use_engine(self, engine: Engine, begun_s: float) -> None:
        """Sets the engine before `submit`, if the body names the model. begun_s: when the body was read."""
        self._engine = engine
        self._outcomes = engine.outcomes_without_path[self._codec.endpoint]
        # `admit` capped the budget for another model; parse again, and `submit` checks and caps again
        self._options = parse_options(self._scope["headers"])
        self._begun_s = begun_s

    def submit(self, body: bytes, arrival: Arrival | None = None) -> Query:
        """Parses the decompressed body and queues a query; its result will be in `query.payload.answer`.

        arrival: estimated arrival of the last byte, None for now. Raises RequestError or FeatureError.
        """
        # the budget starts only now, so that a slow upload does not consume it
        self._begun_s = self._arrival_s = self._begun_s or clock()
        # not from `admit`, since another plan may have been loaded after the headers arrived
        serving = self._serving = self._parsed_by = self._engine.serving
        parsed = self._parsed = self._codec.parse(serving, self._scope, body)
        self._rows = parsed.rows.rows
        if self._codec.has_options:
            self._options = self._options_with(parsed.options)
        budget_s = self._options.budget_s or self._engine.default_budget_s
        self._budget_s = min(budget_s, self._deadline_s - self._begun_s)
        if self._budget_s <= 0:
            raise DeadlinePassed()
        if arrival is not None:
            disturbed = serving.dispatcher.disturbed
            self._arrival_s = arrival.budget_start_s(self._budget_s, self._begun_s, disturbed)
        self._parsed_s = clock()
        if self._engine.rollout is not None:
            self._choose_arm(self._engine.rollout, parsed)
        prediction_log = self._engine.prediction_log
        if prediction_log is not None and prediction_log.wants():
            self._logged_body = body
        try:
            return self._queue()
        except RequestError as e:
            query = self.retry(e)
            if query is None:
                raise
            return query

    def _options_with(self, in_body: RequestOptions) -> RequestOptions:
        """Merges the options of headers, body and the call's deadline; earlier win. Raises Forbidden."""
        options = self._options.over(in_body)
        if self._deadline_is_budget and options.budget_s is None and self._deadline_s < math.inf:
            options = options._replace(budget_s=self._deadline_s - self._begun_s)
        return self._allowed(options)

    def _choose_arm(self, rollout: RolloutTraffic, parsed: Parsed) -> None:
        """Chooses which version of a rollout answers, if the request takes part in it."""
        scope = self._scope
        sender = sender_of(self._client, scope.get("client"))
        self._group = rollout.choose(parsed.rows, scope["headers"], parsed.pinned, sender)
        if self._group is not None:
            self._serving = self._group.arm.serving
            self._waited = self._group.arm.waited()

    def retry(self, error: Exception) -> Query | None:
        """Queues a query that a canary failed at the stable version; None if the error stays the answer.

        Raises RequestError if the stable version rejects it.
        """
        group = self._group
        if group is None or not group.arm.is_canary or not isinstance(error, RETRIED):
            return None
        stable = self._engine.serving
        if not fits(self._parsed.rows, stable, (self._parsed_by, group.arm.serving)):
            return None  # the rollout ended and another model was loaded meanwhile
        is_rejection = isinstance(error, Overloaded | NotReady)
        if isinstance(error, Invalid | FeatureError):
            self._suspect = group  # the canary's fault only if the stable version can answer
        elif isinstance(error, DeadlinePassed):
            if clock() >= self._arrival_s + self._budget_s:
                return None
            read_s = self._parsed_s - self._arrival_s  # budget spent before the canary got the request
            group.failed(group.arm.budget_s(self._budget_s) - read_s, self._waited)
        elif not is_rejection:
            group.failed()
        self._group = None
        self._serving = stable
        query = self._queue()
        if is_rejection:  # only the canary rejected it, as `_queue` did not raise
            group.rejected(self._budget_s)
        return query

    async def answer(self, query: Query) -> Answer:
        """Waits for the answer of the query, or of its retry, and raises their errors."""
        try:
            answer: Answer = await query.payload.answer
        except Exception as e:
            again = self.retry(e)
            if again is None:
                raise
            answer = await again.payload.answer
        return answer

    def _queue(self) -> Query:
        """Queues the query at the chosen version. Raises RequestError."""
        assert self._serving is not None
        options, group = self._options, self._group
        query = self._query = self._serving.dispatcher.submit(
            self._parsed.rows,
            self._arrival_s,
            self._budget_s if group is None else group.arm.budget_s(self._budget_s),
            options.priority or 0,
            options.best_only or False,
            self._trace,
        )
        return query

    def _allowed(self, options: RequestOptions) -> RequestOptions:
        """Checks the client's rights and returns the options with a capped budget. Raises Forbidden."""
        if options is NO_OPTIONS:
            return options
        engine = self._engine
        return engine.access.allowed(options, self._client, engine.max_budget_s, self._scope.get("client"))

    def reply(self, answer: Answer) -> Reply:
        """Builds the reply to an answer."""
        self._answered_s = clock()
        serving = self._serving
        assert serving is not None
        self._answer = answer
        self._path = path = serving.paths[answer.path]
        self._counters = path.endpoints[self._codec.endpoint]
        self._outcomes = self._counters.outcomes
        reply = self._codec.write(serving, self._parsed, answer, path)
        if self._group is not None:
            reply = reply._replace(headers=(*reply.headers, self._group.arm.header))
        self._written_s = clock()
        return reply

    @property
    def answered_by(self) -> AnsweredBy:
        """The path that answered, why quality was degraded, and the sender; for the access log."""
        if not self._written_s:
            return AnsweredBy()
        sender = sender_of(self._client, self._scope.get("client")).decode() or None
        return AnsweredBy(self._path.name, self._answer.reason, self._rows, sender)

    def finish(self, status: int) -> None:
        """Records the request in metrics, trace and logs; called after the reply was written."""
        end_s = clock()
        serving, answer = self._serving, self._answer
        assert serving is not None
        took_s = end_s - self._arrival_s
        in_time = took_s <= self._budget_s
        parse_s, serialize_s = self._parsed_s - self._begun_s, self._written_s - self._answered_s
        if self._trace is not None:
            outcome = OK if in_time else "late"
            moments, path = self._moments(end_s), self._path.name
            self._trace.end(moments, outcome, status, self._rows, self._budget_s, path, answer.reason)
        if self._suspect is not None:
            self._suspect.failed()
        if self._group is not None:
            self._group.answered(took_s, self._budget_s, answer, self._parsed.rows, self._waited)
        self._counters.answered(
            in_time, took_s, self._rows, parse_s, answer.queue_s, serialize_s, answer.reason
        )
        if self._logged_body is not None and self._engine.prediction_log is not None:
            parsed = self._parsed
            request_id = id_to_join(parsed.id, self._scope.get(SCOPE_KEY, ""))
            self._engine.prediction_log.send_prediction(
                request_id, parsed.rows, self._logged_body, answer, self._path
            )
        serving.statistics.succeeded(
            self._rows, took_s, answer.queue_s, parse_s, answer.execute_s, serialize_s
        )

    def reject(self, error: Exception) -> Reply | None:
        """Records the error and builds its reply; None if the client has left."""
        response = error_response(error)
        if isinstance(error, UnknownModel):
            return Reply(response.body, response.status, headers=response.headers)
        if not isinstance(error, RequestError | FeatureError):
            about = log_extra(self._scope.get(SCOPE_KEY, ""))
            log.error("%s failed", self._codec.endpoint, exc_info=error, extra=about)
        client_left = isinstance(error, ClientGone)
        took_s = self._record_failure(response.outcome, 0 if client_left else response.status)
        if self._serving is not None:
            self._serving.statistics.failed(took_s)
        return None if client_left else Reply(response.body, response.status, headers=response.headers)

    def cancel(self) -> None:
        """Records a request that the server stopped before answering."""
        self._record_failure("cancelled", 0)

    def disconnect(self) -> None:
        """Cancels the query of a client that has left; its `Pending` answer raises ClientGone."""
        error = ClientGone("the client closed the connection")
        if not self._cancel_query(error):
            self.reject(error)

    def abandon(self, error: RequestError) -> None:
        """Cancels the query and records the error; called when the answer is no longer awaited."""
        self._cancel_query(error)
        self.reject(error)

    def _cancel_query(self, error: RequestError) -> bool:
        """Cancels the query with an error; returns False if none was queued."""
        if self._query is None:
            return False
        assert self._serving is not None
        self._serving.dispatcher.cancel(self._query, error)
        return True

    def _record_failure(self, outcome: str, status: int) -> float:
        end_s = clock()
        took_s = end_s - self._arrival_s
        self._outcomes.finished(outcome, took_s)
        if self._group is not None and outcome in SLO_MISSES:
            budget_s = self._budget_s if outcome in BY_BUDGET else math.inf
            self._group.failed(budget_s, self._waited)
        if self._trace is not None:
            self._trace.end(self._moments(end_s), outcome, status, self._rows, self._budget_s)
        return took_s

    def _moments(self, ended_s: float) -> Moments:
        return Moments(
            self._arrival_s,
            self._begun_s,
            self._parsed_s,
            self._answered_s,
            self._written_s,
            ended_s,
        )
