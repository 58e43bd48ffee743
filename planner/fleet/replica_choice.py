"""Chooses the replica that answers a query, by predicted completion, from reports that may be old.

Replicas report how long a query that arrives would wait and how long its execution takes. Between reports the
chooser continues a replica's wait by itself: it falls by one second a second, and grows by the work that
this dispatcher sent after the report. Of a few replicas drawn at random the one that would answer first
wins: two choices keep the longest wait near the mean (Mitzenmacher 2001), and because the draw is random,
dispatchers that read the same old report do not all send to the same replica.

Pure: callers pass the time and the random generator.
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
MOST_SENT = 4096
"""Remembered queries of a replica since its last report; one that was sent more is out of date anyway."""
DRAWS = 4
"""Draws for each candidate before the replicas that answer are looked up one by one."""


class NoReplica(LookupError):
    """No replica is known that is not excluded."""


@dataclass(slots=True)
class ReplicaState:
    """The last report of a replica, continued to a later time.

    weight: how often it is drawn, like its capacity. wait_s: seconds that a query would have waited at
    `at_s`, service_s: of execution after that. reported_s: when the replica said so. sent: (time, seconds of
    wait added) of queries sent to it after that.
    """

    weight: float
    reported_s: float
    wait_s: float = 0.0
    service_s: float = 0.0
    at_s: float = 0.0
    sent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_SENT))

    def advance(self, now_s: float, work_s: float = 0.0) -> None:
        """Moves the wait to now_s and adds work; a time in the past adds the work alone."""
        passed_s = now_s - self.at_s
        if passed_s > 0:
            self.wait_s = max(self.wait_s - passed_s, 0.0)
            self.at_s = now_s
        self.wait_s += work_s


class ReplicaChoice(Generic[Name]):
    """Picks replicas by name. candidates: drawn for each query; more balance better if reports are fresh.

    silent_s: a replica whose last report is older is picked only if all are. dispatchers: that send to the
    same replicas like this one; each knows its own queries, so one stands for as many.
    """

    def __init__(
        self, rng: Random, candidates: int = CHOICES, silent_s: float = SILENT_S, dispatchers: int = 1
    ) -> None:
        if candidates < 1 or dispatchers < 1:
            raise ValueError(f"candidates {candidates} and dispatchers {dispatchers} must be at least 1")
        self._rng = rng
        self._candidates = candidates
        self._silent_s = silent_s
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
        """Adds idle replicas, as `add` does one."""
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
        """Records what a replica said at `reported_s`; older than the last report, or unknown: ignored.

        wait_s, service_s: of a query that had arrived then, by the replica's own prediction.
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

    def sent(self, name: Name, now_s: float, work_s: float) -> None:
        """Records a query that this dispatcher sends.

        work_s: by how much it lengthens the replica's wait, on its fastest paths. What it really takes
        misleads: a replica with time to spare spends more on a better path, looks loaded and gets
        less still.
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
        """Returns the replica to send a query to. excluded: those that it was tried on.

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
        return now_s - self._states[name].reported_s > self._silent_s

    def _index(self) -> None:
        """Prepares the weighted draw."""
        self._names = list(self._states)
        self._upto = list(accumulate(state.weight for state in self._states.values()))
