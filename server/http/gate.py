"""Requests that are turned away unread: past capacity they are most, and goodput is what they leave.

What `call.py` would do with them, in as few steps as it takes: the router's word, the counters, and an answer
that is the same bytes for all that one round of reading refuses.
"""

from __future__ import annotations

from planner.routing.query import Refusal, Refused
from server.dispatcher import clock, refusal_of
from server.engine import Engine
from server.http.reply import HeaderList, error_reply

MOST_ANSWERS = 256


class Gate:
    """Of one hot endpoint."""

    def __init__(self, engine: Engine, endpoint: str) -> None:
        self._engine = engine
        self._outcomes = engine.without_path[endpoint]
        self._first: HeaderList = ()
        self._answers: dict[tuple[Refusal, int, float], tuple[str, bytes, bytes]] = {}

    @property
    def judges(self) -> bool:
        """Whether it can: not where requests are traced or need a token, and not without a plan."""
        engine = self._engine
        return engine.tracer is None and engine.loaded and not engine.access.needs_tokens

    def refused(
        self, budget_s: float | None, size: int, arrived_s: float, first: HeaderList, keep_alive: bool
    ) -> bytes | None:
        """The whole answer to a request that need not be read, counted; None: read it.

        Of one without other options, if the gate judges. budget_s: None for the server's default. size: bytes
        of its body. first: headers of the server.
        """
        engine = self._engine
        serving = engine.serving
        budget_s = min(budget_s or engine.default_budget_s, engine.most_budget_s)
        router = serving.dispatcher.router
        refused = router.turned_away(arrived_s, arrived_s + budget_s, size, clock())
        if refused is None:
            return None
        outcome, staying, leaving = self._answer(refused, budget_s, first)
        took_s = clock() - arrived_s
        self._outcomes.finished(outcome, took_s)
        serving.statistics.failed(took_s)
        return staying if keep_alive else leaving

    def _answer(self, refused: Refused, budget_s: float, first: HeaderList) -> tuple[str, bytes, bytes]:
        """(outcome, answer that keeps the connection, answer that closes it)."""
        if first is not self._first or len(self._answers) >= MOST_ANSWERS:
            self._first = first
            self._answers.clear()
        if refused.why is Refusal.EXPIRED:
            key: tuple[Refusal, int, float] = (refused.why, 0, budget_s)
        else:
            key = (refused.why, refused.queued_rows, refused.retry_after_s)
        answer = self._answers.get(key)
        if answer is None:
            error = refusal_of(refused, budget_s)
            reply = error_reply(error)
            answer = error.outcome, reply.wire(first, (), True), reply.wire(first, (), False)
            self._answers[key] = answer
        return answer
