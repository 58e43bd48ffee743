"""Spans in which a core does something else: a stopped process, a neighbor's turns on the core.

Faults come in, ascending spans go out; work that meets a span goes on after it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from polyrec.planner.simulation.faults import Fault

BURST_S, PERIOD_S = 0.05, 0.1
"""A neighbor computes in bursts; in a burst it has the core half of the time, in turns of SLICE_S."""
SLICE_S = 0.003
"""A scheduler's turn where two processes want one core: 2.8 to 4 ms on Linux."""

Span = tuple[float, float]


class Held:
    """spans: (begin, end) in seconds, ascending, not touching."""

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
        """Now, or the end of the span that now is in."""
        i = bisect_right(self._begins, now_s) - 1
        return self._ends[i] if i >= 0 and now_s < self._ends[i] else now_s

    def done_s(self, start_s: float, work_s: float) -> float:
        """When work is done that takes `work_s` of the core and begins at start_s."""
        now_s = self.free_s(start_s)
        i = bisect_right(self._begins, now_s)
        while i < len(self._begins) and now_s + work_s > self._begins[i]:
            work_s -= self._begins[i] - now_s
            now_s = self._ends[i]
            i += 1
        return now_s + work_s


def stopped(faults: Iterable[Fault]) -> Held:
    """Spans in which the whole process stands still, lanes included."""
    return Held((f.begin_s, f.end_s) for f in faults if f.kind == "stop")


def robbed(faults: Iterable[Fault], until_s: float) -> Held:
    """Spans in which the core of the event loop does something else: neighbors' turns, and `stopped`."""
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
    return Held(spans)
