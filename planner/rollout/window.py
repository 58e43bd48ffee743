"""A sliding window of sums, composed of slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, Self, TypeVar

SLICES = 10
"""Usual number of slices; the oldest is dropped when a new one begins."""


class Sums(Protocol):
    """Sums of one slice."""

    def merge(self, other: Self) -> None:
        """Adds the sums of another slice."""
        ...


S = TypeVar("S", bound=Sums)


def merged(make: Callable[[], S], parts: Iterable[S]) -> S:
    """Returns the sum of parts. make: makes empty sums."""
    total = make()
    for part in parts:
        total.merge(part)
    return total


class SlidingWindow(Generic[S]):
    """Sums over the last span_s seconds. make: makes empty sums. slices: number of them."""

    def __init__(self, span_s: float, make: Callable[[], S], slices: int = SLICES) -> None:
        self._span_s, self._slice_s = span_s, span_s / slices
        self._make = make
        self._slices: deque[tuple[float, S]] = deque(maxlen=slices)

    def current(self, now_s: float) -> S:
        """Returns the slice to add to. now_s: on a monotonic clock."""
        if not self._slices or now_s >= self._slices[-1][0] + self._slice_s:
            self._slices.append((now_s, self._make()))
        return self._slices[-1][1]

    def total(self, now_s: float) -> S:
        """Returns the sum of all slices in the window."""
        return merged(self._make, (part for start_s, part in self._slices if start_s >= now_s - self._span_s))
