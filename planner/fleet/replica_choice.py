"""Chooses the replica that answers a query by predicted completion, from reports that may be old.

Replicas report how long an arriving query would wait and how long its execution takes. Between reports, the
chooser extrapolates a replica's wait: it falls by one second per second, and grows by the work that this
dispatcher has sent since the report. Of a few random replicas, it picks the one that would answer first. Two
choices keep the longest wait near the mean (Mitzenmacher 2001). Because the candidates are random,
dispatchers with the same old report do not all send to the same replica.

The code is pure: callers pass the time and the random generator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Generic, TypeVar

Name = TypeVar("Name", str, int)

CHOICES = 2
SILENT_S = 5.0
"""Age of a report above which a replica is picked only if all reports are this old."""
MAX_SENT = 4096
"""Maximum remembered queries of a replica since its last report; with more, the report is obsolete."""
DRAWS = 4
"""Draws per candidate before all replicas that report are listed."""


class NoReplica(LookupError):
    """Raised if every known replica is excluded."""


@dataclass(slots=True)
class ReplicaState:
    """The last report of a replica, extrapolated to a later time.

    weight: weight in the random draw, such as its capacity. wait_s: seconds that a query arriving at `at_s`
    would wait. service_s: seconds of its execution. reported_s: time of the report. sent: (time, seconds of
    wait added) of queries sent to it since.
    """

    weight: float
    reported_s: float
    wait_s: float = 0.0
    service_s: float = 0.0
    at_s: float = 0.0
    sent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_SENT))

    def advance(self, now_s: float, work_s: float = 0.0) -> None:
        """Advances the wait to now_s and adds work; if now_s is in the past, only adds the work."""
        passed_s = now_s - self.at_s
        if passed_s > 0:
            self.wait_s = max(self.wait_s - passed_s, 0.0)
            self.at_s = now_s
        self.wait_s += work_s


class ReplicaChoice(Generic[Name]):
    """Picks replicas by name.

    candidates: number drawn per query; more balance better if reports are fresh. dispatchers: number of
    dispatchers that send to the same replicas; since each knows only its own queries, it counts each of them
    that many times.
    """

    def __init__(self, rng: Random, candidates: int = CHOICES, dispatchers: int = 1) -> None:
        if candidates < 1 or dispatchers < 1:
            raise ValueError(f"candidates {candidates} and dispatchers {dispatchers} must be at least 1")
        self._rng = rng
        self._candidates = candidates
        self._dispatchers = dispatchers
        self._states: dict[Name, ReplicaState] = {}
        self._names: list[Name] = []
        self._upto: list[float] = []

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: Name, now_s: float, weight: float = 1.0) -> None:
        """Adds an idle replica, or changes the weight of a known one."""
        self.add_all({name: weight}, now_s)

    def add_all(self, weights: Mapping[Name, float], now_s: float) -> None:
        """Adds several replicas, like `add`."""
        for name, weight in weights.items():
            if not weight > 0:
                raise ValueError(f"weight {weight} of replica '{name}' must be positive")
            known = self._states.get(name)
            if known is None:
                self._states[name] = ReplicaState(weight, now_s, at_s=now_s)
            else:
                known.weight = weight
        self._index()

    def remove(self, name: Name) -> None:
        """Forgets a replica; an unknown one is ignored."""
        if self._states.pop(name, None) is not None:
            self._index()

    def report(self, name: Name, reported_s: float, wait_s: float, service_s: float) -> None:
        """Records a report made at `reported_s`; ignores unknown replicas, and reports older than the last.

        wait_s, service_s: the replica's own prediction for a query arriving at that time.
        """
        state = self._states.get(name)
        if state is None or reported_s < state.reported_s:
            return
        state.reported_s = state.at_s = reported_s
        state.wait_s, state.service_s = max(wait_s, 0.0), max(service_s, 0.0)
        sent = state.sent
        while sent and sent[0][0] <= reported_s:
            sent.popleft()
        for at_s, work_s in sent:
            state.advance(at_s, work_s)

    def record_sent(self, name: Name, now_s: float, work_s: float) -> None:
        """Records a query that this dispatcher sends.

        work_s: by how much it lengthens the replica's wait, on its fastest paths. The actual time would
        mislead: a replica with time to spare spends more on better paths, would look loaded and get even
        fewer queries.
        """
        state = self._states.get(name)
        if state is not None:
            work_s *= self._dispatchers
            state.sent.append((now_s, work_s))
            state.advance(now_s, work_s)

    def predicted_s(self, name: Name, now_s: float) -> float:
        """Returns seconds until the answer if a query is sent now. Raises KeyError if unknown."""
        state = self._states[name]
        return max(state.wait_s - max(now_s - state.at_s, 0.0), 0.0) + state.service_s

    def pick(self, now_s: float, excluded: Collection[Name] = ()) -> Name:
        """Returns the replica to send a query to. excluded: replicas on which it was already tried.

        Raises NoReplica.
        """
        drawn: list[Name] = []
        names, upto = self._names, self._upto
        if len(names) > len(excluded):
            for _ in range(DRAWS * self._candidates):
                name = names[bisect_right(upto, self._rng.random() * upto[-1], hi=len(upto) - 1)]
                if name not in drawn and name not in excluded and not self._is_silent(name, now_s):
                    drawn.append(name)
                    if len(drawn) == self._candidates:
                        break
        if not drawn:
            left = [name for name in names if name not in excluded]
            left = [name for name in left if not self._is_silent(name, now_s)] or left
            drawn = self._rng.sample(left, min(self._candidates, len(left)))
        if not drawn:
            raise NoReplica(f"none of {len(names)} replicas can be tried; {len(excluded)} were")
        return min(drawn, key=lambda name: self.predicted_s(name, now_s))

    def _is_silent(self, name: Name, now_s: float) -> bool:
        return now_s - self._states[name].reported_s > SILENT_S

    def _index(self) -> None:
        """Prepares the weighted draw."""
        self._names = list(self._states)
        self._upto = list(accumulate(state.weight for state in self._states.values()))
