"""Implements baseline policies for choosing a replica, with the interface of `ReplicaChoice`.

Replicas are numbered; weights are capacities, which round robin ignores.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from random import Random


class RoundRobin:
    """Picks replicas in turn, whatever their capacity."""

    def __init__(self, weights: Sequence[float], rng: Random) -> None:
        self._n = len(weights)
        self._next = rng.randrange(self._n)

    def pick(self, now_s: float) -> int:
        self._next = (self._next + 1) % self._n
        return self._next

    def report(self, name: int, reported_s: float, wait_s: float, service_s: float) -> None:
        """Ignores the report."""

    def record_sent(self, name: int, now_s: float, work_s: float) -> None:
        """Ignores the query."""

    def finished(self, name: int) -> None:
        """Ignores the answer."""


class WeightedRandom(RoundRobin):
    """Picks a random replica in proportion to its weight."""

    def __init__(self, weights: Sequence[float], rng: Random) -> None:
        super().__init__(weights, rng)
        self._rng = rng
        self._upto = list(accumulate(weights))

    def pick(self, now_s: float) -> int:
        return bisect_right(self._upto, self._rng.random() * self._upto[-1], hi=len(self._upto) - 1)


class LeastOutstanding(WeightedRandom):
    """Picks the replica with the fewest unanswered queries; breaks ties at random.

    Counts only queries that this dispatcher sent, so its state is never stale.
    """

    def __init__(self, weights: Sequence[float], rng: Random) -> None:
        super().__init__(weights, rng)
        self._count = [0] * len(weights)
        # replicas by count, and each replica's index in its group
        self._groups: list[list[int]] = [list(range(len(weights)))]
        self._place = list(range(len(weights)))
        self._least = 0

    def pick(self, now_s: float) -> int:
        while not self._groups[self._least]:
            self._least += 1
        group = self._groups[self._least]
        return group[int(self._rng.random() * len(group))]

    def record_sent(self, name: int, now_s: float, work_s: float) -> None:
        """Counts a query."""
        self._move(name, 1)

    def finished(self, name: int) -> None:
        """Counts an answer."""
        self._move(name, -1)

    def _move(self, name: int, by: int) -> None:
        group = self._groups[self._count[name]]
        last = group.pop()
        if last != name:
            group[self._place[name]] = last
            self._place[last] = self._place[name]
        self._count[name] += by
        count = self._count[name]
        while len(self._groups) <= count:
            self._groups.append([])
        self._place[name] = len(self._groups[count])
        self._groups[count].append(name)
        self._least = min(self._least, count)


class StaleTwoChoices(WeightedRandom):
    """Picks the better of two random replicas by their last reports, without extrapolating them."""

    def __init__(self, weights: Sequence[float], rng: Random) -> None:
        super().__init__(weights, rng)
        self._completion_s = [0.0] * len(weights)

    def pick(self, now_s: float) -> int:
        first, second = super().pick(now_s), super().pick(now_s)
        return second if self._completion_s[second] < self._completion_s[first] else first

    def report(self, name: int, reported_s: float, wait_s: float, service_s: float) -> None:
        """Stores the predicted completion."""
        self._completion_s[name] = wait_s + service_s
