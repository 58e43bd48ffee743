"""Faults to simulate: killed, slow, stalled or initially slow lanes, a stopped process, a busy neighbor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from polyrec.models.errors import PolyrecError

FAULT_FORMS = (
    "slow:LANE:FACTOR:FROM-TO, first:LANE:FACTOR:FROM, stall:LANE:FROM-TO, kill:LANE:FROM[-TO], stop:FROM-TO "
    "or neighbor:FROM[-TO], in seconds"
)
LANELESS = ("stop", "neighbor")


class FaultError(PolyrecError):
    """A fault is malformed or does not name an existing lane."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a time window.

    slow: batches that start in the window take `factor` times as long.
    stall: the lane makes no progress in the window.
    first: the lane's first batch from begin_s on takes `factor` times as long.
    kill: the lane dies at begin_s and restarts at end_s (infinity for never).
    stop: the whole process including all lanes is stopped.
    neighbor: another process takes half of the event loop's core in bursts (preemption.py).
    lane: index of the lane, -1 for `stop` and `neighbor`.
    """

    kind: Literal["slow", "first", "stall", "kill", "stop", "neighbor"]
    lane: int
    begin_s: float
    end_s: float
    factor: float = 1.0


def parse_fault(text: str, lanes: Iterable[str]) -> Fault:
    """Parses a fault from its short form. Raises FaultError."""
    names = list(lanes)
    kind, _, rest = text.partition(":")
    if kind not in ("slow", "first", "stall", "kill", *LANELESS):
        raise FaultError(f"fault '{text}': '{kind}' is no kind of fault; like {FAULT_FORMS}")
    at = -1
    if kind not in LANELESS:
        # lane names may contain a colon, as in `cuda:0`
        lane = max((n for n in names if rest.startswith(f"{n}:")), key=len, default=None)
        if lane is None:
            raise FaultError(f"fault '{text}' names no lane; lanes: {', '.join(names)}; like {FAULT_FORMS}")
        at, rest = names.index(lane), rest[len(lane) + 1 :]
    fields = rest.split(":")
    factor = 1.0
    try:
        if kind in ("slow", "first"):
            if len(fields) != 2:
                raise ValueError
            factor = float(fields.pop(0))
        (window,) = fields
        begin, dash, end = window.partition("-")
        begin_s = float(begin)
        end_s = float(end) if dash else float("inf")
    except ValueError:
        raise FaultError(f"fault '{text}' is not of the form {FAULT_FORMS}") from None
    if (
        not 0 <= begin_s < end_s
        or not 0 < factor < float("inf")
        or (kind in ("stall", "stop") and end_s == float("inf"))
    ):
        raise FaultError(f"fault '{text}': the window must end after it begins, a factor be above 0")
    return Fault(kind, at, begin_s, end_s, factor)  # type: ignore[arg-type]


def lane_changes(faults: Iterable[Fault]) -> list[tuple[float, Literal["down", "up"], int]]:
    """Returns (time, change, lane) of lane deaths and restarts, latest first."""
    found: list[tuple[float, Literal["down", "up"], int]] = []
    for fault in faults:
        if fault.kind == "kill":
            found.append((fault.begin_s, "down", fault.lane))
            if fault.end_s < float("inf"):
                found.append((fault.end_s, "up", fault.lane))
    return sorted(found, reverse=True)
