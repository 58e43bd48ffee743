"""Faults of lanes, for simulations: one killed, slowed, or stalled in a window of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from models.errors import PolyrecError

SHORT = "slow:LANE:FACTOR:FROM-TO, stall:LANE:FROM-TO or kill:LANE:FROM[-TO], in seconds"


class FaultError(PolyrecError):
    """A fault that is malformed or names no lane."""


@dataclass(frozen=True, slots=True)
class Fault:
    """slow: batches that begin in the window take `factor` times as long. stall: nothing gets on in it.

    kill: the lane is dead from begin_s on, started again at end_s (infinity: never).
    """

    kind: Literal["slow", "stall", "kill"]
    lane: int
    begin_s: float
    end_s: float
    factor: float = 1.0


def parse_fault(text: str, lanes: Iterable[str]) -> Fault:
    """A fault from its short form. Raises FaultError, in one line."""
    names = list(lanes)
    kind, _, rest = text.partition(":")
    # A lane's name may itself have a colon, as `cuda:0` has.
    lane = max((n for n in names if rest.startswith(f"{n}:")), key=len, default=None)
    if kind not in ("slow", "stall", "kill"):
        raise FaultError(f"fault '{text}': '{kind}' is no kind of fault; like {SHORT}")
    if lane is None:
        raise FaultError(f"fault '{text}' names no lane; lanes: {', '.join(names)}; like {SHORT}")
    fields = rest[len(lane) + 1 :].split(":")
    factor = 1.0
    try:
        if kind == "slow":
            if len(fields) != 2:
                raise ValueError
            factor = float(fields.pop(0))
        (window,) = fields
        begin, dash, end = window.partition("-")
        begin_s = float(begin)
        end_s = float(end) if dash else float("inf")
    except ValueError:
        raise FaultError(f"fault '{text}' is not of the form {SHORT}") from None
    if (
        not 0 <= begin_s < end_s
        or not 0 < factor < float("inf")
        or (kind == "stall" and end_s == float("inf"))
    ):
        raise FaultError(f"fault '{text}': the window must end after it begins, a factor be above 0")
    return Fault(kind, names.index(lane), begin_s, end_s, factor)  # type: ignore[arg-type]
