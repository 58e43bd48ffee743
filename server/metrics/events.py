"""Keeps the last hour's events for the status page: reloads, lost and stalled lanes, overloads, losses.

    engine, recorder  --add-->   Events  --since-->  GET /v1/status
    samples (History) --note-->  Incidents: overloads and losses, began and ended
    lanes, every tick --note-->  Stalls: lanes that do not return a batch

Overloads and stalls are logged here; other events and losses are logged where they occur. A server is
overloaded while more than OVERLOADED_SHARE of its requests are rejected or expire. That is the condition of
the alert PolyrecOverloaded, detected within seconds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.server.metrics.history import EVERY_S

EventKind = Literal[
    "reload",
    "routing",
    "draining",
    "lane_died",
    "lane_back",
    "lane_stalled",
    "lane_resumed",
    "overload_began",
    "overload_ended",
    "records_lost",
    "records_written",
    "rows_lost",
    "rows_found",
    "rollout",
    "note",
]
log = logging.getLogger("polyrec.serving")

KEPT = 100
OVERLOADED_SHARE = 0.05
MIN_REJECTED = 10
"""Minimum rejections between two samples of an overload; fewer can come from one client's tiny budget."""
STALL_S = 0.5
"""Time after which a batch that has not returned is reported; on busy machines many are briefly overdue."""
CALM_SAMPLES = 3
"""Number of consecutive samples without overload after which an overload has ended."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of one server. t: seconds since the server's start."""

    t: float
    kind: EventKind
    text: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Events:
    """The latest events of one server. started_s: time of its start, from which `t` counts."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._events: deque[Event] = deque(maxlen=KEPT)

    def add(self, now_s: float, kind: EventKind, text: str) -> None:
        """Records an event at the current time."""
        self._events.append(Event(round(now_s - self._started_s, 3), kind, text))

    def since(self, t: float) -> list[Event]:
        """Returns the events after `t`, oldest first."""
        return [event for event in self._events if event.t > t]


class _Episode:
    """A bad period: begins with a bad sample and ends after `calm` calm samples without a bad one between."""

    def __init__(self, calm: int) -> None:
        self._calm = calm
        self._left = 0
        """Calm samples until the end; 0: none is in progress."""

    def record(self, bad: bool, calm: bool) -> Literal["began", "ended"] | None:
        """Records a sample, which may be neither bad nor calm."""
        if bad:
            begins, self._left = not self._left, self._calm
            return "began" if begins else None
        if self._left and calm:
            self._left -= 1
            return None if self._left else "ended"
        return None


class Overload:
    """Detects the start and end of overloads from cumulative counts of requests."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._counted = self._rejected = 0.0
        self._episode = _Episode(CALM_SAMPLES)
        self._began_s = self._bad_s = self._noted_s = 0.0

    def record(self, now_s: float, counted: float, rejected: float) -> None:
        """Records cumulative counts. counted: requests that the SLO counts; rejected: with 429 or 504."""
        requests, new_rejected = counted - self._counted, rejected - self._rejected
        self._counted, self._rejected = counted, rejected
        bad = new_rejected > OVERLOADED_SHARE * requests and new_rejected >= MIN_REJECTED
        change = self._episode.record(bad, calm=not bad)
        if bad:
            self._bad_s = now_s
        if change == "began":
            # after the last sample; an idle server takes none, so that may be long ago
            self._began_s = max(self._noted_s, now_s - EVERY_S)
            share = f"{new_rejected / requests:.0%} of requests rejected or expired"
            self._report(now_s, "overload_began", f"overload began: {share}")
        elif change == "ended":
            # not until now, for the same reason
            lasted_s = self._bad_s - self._began_s
            self._report(now_s, "overload_ended", f"overload ended after about {lasted_s:.0f} s")
        self._noted_s = now_s

    def _report(self, now_s: float, kind: EventKind, text: str) -> None:
        self._events.add(now_s, kind, text)
        log.warning("%s", text)


class LossDetector:
    """Detects the start and end of losses from cumulative counts of lost and kept items.

    began, ended: kind and text of the two events; `{lost}` is the number lost in between. calm: number of
    samples with kept and without lost items after which a loss has ended; samples of an idle server do not
    count.
    """

    def __init__(
        self, events: Events, began: tuple[EventKind, str], ended: tuple[EventKind, str], calm: int
    ) -> None:
        self._events = events
        self._began, self._ended = began, ended
        self._lost = self._kept = self._lost_before = 0.0
        self._episode = _Episode(calm)

    def record(self, now_s: float, lost: float, kept: float) -> None:
        """Takes the counts so far."""
        change = self._episode.record(lost > self._lost, calm=kept > self._kept)
        if change == "began":
            self._lost_before = self._lost
            self._events.add(now_s, *self._began)
        elif change == "ended":
            kind, text = self._ended
            self._events.add(now_s, kind, text.format(lost=f"{lost - self._lost_before:,.0f}"))
        self._lost, self._kept = lost, kept


class Stalls:
    """Finds lanes that are alive and do not return a batch: hung, stopped, or without processor time."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._stalled: dict[LaneState, float] = {}
        """Start of the batch by lane, in seconds; a reload replaces lanes by others of the same names."""

    def record(self, now_s: float, lanes: Iterable[tuple[str, LaneState]]) -> None:
        """Takes the lanes' states, by name; to be called every tick."""
        before, self._stalled = self._stalled, {}
        for name, lane in lanes:
            waited_s = lane.stalled_s(now_s)
            if waited_s >= STALL_S:
                self._stalled[lane] = now_s - waited_s
                if lane not in before:
                    text = f"lane {name} stalled: a batch has not returned for {waited_s:.1f} s"
                    self._report(now_s, "lane_stalled", f"{text}; until it does, the lane gets no work")
            elif lane in before and lane.alive:
                text = f"lane {name} returned its batch after {now_s - before[lane]:.1f} s"
                self._report(now_s, "lane_resumed", text)

    def _report(self, now_s: float, kind: EventKind, text: str) -> None:
        self._events.add(now_s, kind, text)
        log.warning("%s", text)


class Incidents:
    """Detects overloads, stalled lanes, records lost by the log, and rows missing from the remote store."""

    def __init__(self, events: Events) -> None:
        self._overload = Overload(events)
        self.stalls = Stalls(events)
        self._records = LossDetector(
            events,
            ("records_lost", "prediction log: records are lost (log: polyrec.prediction_log)"),
            ("records_written", "prediction log: records are written again; {lost} were lost"),
            calm=1,  # files are written seldom
        )
        self._rows = LossDetector(
            events,
            ("rows_lost", "remote store: fails, is slow or lacks rows (log: polyrec.tiers)"),
            ("rows_found", "remote store: serves all rows again; {lost} were replaced"),
            CALM_SAMPLES,
        )

    def record(
        self,
        now_s: float,
        sample: Mapping[str, Any],
        counted: float,
        logged: Mapping[tuple[str, str], int],
        fallbacks: float,
    ) -> None:
        """Records the cumulative counts.

        sample: sample of the status page. counted: requests that the SLO counts. logged: records of the
        prediction log, by kind and outcome. fallbacks: rows that the remote store failed to deliver.
        """
        outcomes = sample["outcomes"]
        self._overload.record(now_s, counted, outcomes["overloaded"] + outcomes["expired"])
        lost = sum(number for (_, outcome), number in logged.items() if outcome in ("lost", "dropped"))
        written = sum(number for (_, outcome), number in logged.items() if outcome == "written")
        self._records.record(now_s, lost, written)
        self._rows.record(now_s, fallbacks, sample["tiers"].get("remote", (0, 0))[1])
