"""Converts faults to time spans in which a core is stopped or executes another process.

Work that is interrupted by a span continues after it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from polyrec.planner.simulation.faults import Fault

BURST_S, PERIOD_S = 0.05, 0.1
"""Length and period of a neighbor's bursts, during which it has the core half of the time."""
SLICE_S = 0.003
"""Time slice of the scheduler when two processes compete for a core, 2.8 to 4 ms on Linux."""

Span = tuple[float, float]


class Preemptions:
    """Time spans in which a simulated core is unavailable.

    spans: (begin, end) in seconds, ascending and disjoint.
    """

    __slots__ = ("_begins", "_ends")

    def __init__(self, spans: Iterable[Span]) -> None:
        merged: list[Span] = []
        for begin_s, end_s in sorted(spans):
            if merged and begin_s <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], end_s)
            else:
                merged.append((begin_s, end_s))
        self._begins = [begin_s for begin_s, _ in merged]
        self._ends = [end_s for _, end_s in merged]

    def __bool__(self) -> bool:
        return bool(self._begins)

    def free_s(self, now_s: float) -> float:
        """Returns now_s, or the end of the span that contains it."""
        i = bisect_right(self._begins, now_s) - 1
        return self._ends[i] if i >= 0 and now_s < self._ends[i] else now_s

    def done_s(self, start_s: float, work_s: float) -> float:
        """Returns when work that starts at start_s and needs `work_s` core seconds completes."""
        now_s = self.free_s(start_s)
        i = bisect_right(self._begins, now_s)
        while i < len(self._begins) and now_s + work_s > self._begins[i]:
            work_s -= self._begins[i] - now_s
            now_s = self._ends[i]
            i += 1
        return now_s + work_s

    def within_s(self, begin_s: float, end_s: float) -> float:
        """Returns for how many of the seconds from begin_s to end_s the core is unavailable."""
        unavailable_s = 0.0
        for i in range(bisect_right(self._ends, begin_s), bisect_right(self._begins, end_s)):
            unavailable_s += min(self._ends[i], end_s) - max(self._begins[i], begin_s)
        return unavailable_s


def process_stops(faults: Iterable[Fault]) -> Preemptions:
    """Returns the spans in which the whole process including its lanes is stopped."""
    return Preemptions((f.begin_s, f.end_s) for f in faults if f.kind == "stop")


def loop_preemptions(faults: Iterable[Fault], until_s: float) -> Preemptions:
    """Returns the spans in which the event loop does not have its core, due to neighbors or stops."""
    spans = []
    for fault in faults:
        if fault.kind == "stop":
            spans.append((fault.begin_s, fault.end_s))
        elif fault.kind == "neighbor":
            end_s = min(fault.end_s, until_s)
            for burst in range(int((end_s - fault.begin_s) / PERIOD_S) + 1):
                begin_s = fault.begin_s + burst * PERIOD_S
                for turn in range(round(BURST_S / (2 * SLICE_S))):
                    at_s = begin_s + 2 * turn * SLICE_S
                    if at_s < end_s:
                        spans.append((at_s, at_s + SLICE_S))
    return Preemptions(spans)
