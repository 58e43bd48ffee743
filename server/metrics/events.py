"""Keeps what happened in the last hour, for the status page: reloads, deaths of lanes, overloads.

    engine, recorder  --add-->   Events  --since-->  GET /v1/status
    samples (History) --note-->  Overload: began, ended

Overloads are logged as well; who adds another event logs it, too. A server is overloaded while more than
OVERLOADED_SHARE of its requests are rejected or expire, as the alert PolyrecOverloaded has it, but within
seconds.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Literal

EventKind = Literal[
    "reload",
    "routing",
    "draining",
    "lane_died",
    "lane_back",
    "overload_began",
    "overload_ended",
    "rollout",
    "note",
]
log = logging.getLogger("polyrec.serving")

KEPT = 100
OVERLOADED_SHARE = 0.05
LEAST_REJECTED = 10
"""Rejections between two samples below which a server is not called overloaded: one client's tiny budget."""
CALM_SAMPLES = 3
"""Samples in a row without overload after which one has ended."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of one server. t: seconds since the start of the server."""

    t: float
    kind: EventKind
    text: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Events:
    """The last events of one server. started_s: time from which `t` counts, in seconds."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._events: deque[Event] = deque(maxlen=KEPT)

    def add(self, now_s: float, kind: EventKind, text: str) -> None:
        """Records that something happened now."""
        self._events.append(Event(round(now_s - self._started_s, 3), kind, text))

    def since(self, t: float) -> list[Event]:
        """The events later than `t`, oldest first."""
        return [event for event in self._events if event.t > t]


class Overload:
    """Finds when an overload begins and ends, from cumulative counts of requests."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._counted = self._rejected = 0.0
        self._began_s: float | None = None
        self._calm = 0

    def note(self, now_s: float, counted: float, rejected: float) -> None:
        """Takes the counts so far. counted: requests that the SLO counts; rejected: of them, 429 and 504."""
        requests, refused = counted - self._counted, rejected - self._rejected
        self._counted, self._rejected = counted, rejected
        if refused > OVERLOADED_SHARE * requests and refused >= LEAST_REJECTED:
            self._calm = 0
            if self._began_s is None:
                self._began_s = now_s
                share = f"{refused / requests:.0%} of requests rejected or expired"
                self._report(now_s, "overload_began", f"overload began: {share}")
        elif self._began_s is not None:
            self._calm += 1
            if self._calm == CALM_SAMPLES:
                lasted_s = now_s - self._began_s
                self._report(now_s, "overload_ended", f"overload ended after about {lasted_s:.0f} s")
                self._began_s = None

    def _report(self, now_s: float, kind: EventKind, text: str) -> None:
        self._events.add(now_s, kind, text)
        log.warning("%s", text)
