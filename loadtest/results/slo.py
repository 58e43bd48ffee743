"""Counts SLO figures by kind of request, for the columns that Locust's own table lacks.

The counts of several workers can be added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

HEAD = ("Name", "# requests", "in budget", "degraded", "rejected", "goodput rows/s", "sender lag ms")


@dataclass(slots=True)
class SloCounts:
    """Requests sent, answered in budget, degraded, rejected (429); rows answered in budget.

    lag_s: total delay caused by the sender itself, in seconds.
    """

    requests: int = 0
    in_budget: int = 0
    degraded: int = 0
    rejected: int = 0
    rows: int = 0
    lag_s: float = 0.0

    def add(self, other: SloCounts) -> None:
        """Adds the counts of `other`."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    @property
    def share(self) -> float:
        """Share of the requests answered in budget; 1 without requests."""
        return self.in_budget / self.requests if self.requests else 1.0

    def cells(self, name: str, seconds: float) -> tuple[str, ...]:
        """Formats the counts as a table row under HEAD."""
        n = max(self.requests, 1)
        return (
            name,
            str(self.requests),
            f"{100 * self.share:.2f}%",
            f"{100 * self.degraded / n:.2f}%",
            f"{100 * self.rejected / n:.2f}%",
            f"{self.rows / max(seconds, 1e-9):.0f}",
            f"{1e3 * self.lag_s / n:.2f}",
        )


class SloTable:
    """Counts by kind of request."""

    def __init__(self) -> None:
        self.kinds: dict[str, SloCounts] = {}

    def count(
        self,
        kind: str,
        rows: int,
        latency_s: float,
        budget_s: float,
        status: int,
        degraded: bool,
        lag_s: float,
    ) -> None:
        """Counts one answer."""
        counts = self.kinds.setdefault(kind, SloCounts())
        counts.requests += 1
        counts.lag_s += lag_s
        counts.rejected += status == 429
        if 200 <= status < 300:
            counts.degraded += degraded
            if latency_s <= budget_s:
                counts.in_budget += 1
                counts.rows += rows

    def total(self) -> SloCounts:
        """Returns the sum over all kinds."""
        total = SloCounts()
        for counts in self.kinds.values():
            total.add(counts)
        return total

    def pop(self) -> dict[str, dict[str, float]]:
        """Returns the counts as plain data, for a worker's report to its master, and resets them."""
        counts = {kind: asdict(found) for kind, found in self.kinds.items()}
        self.kinds = {}
        return counts

    def merge(self, report: Mapping[str, Mapping[str, float]]) -> None:
        """Adds the counts that a worker reported."""
        for kind, counts in report.items():
            self.kinds.setdefault(kind, SloCounts()).add(SloCounts(**counts))  # type: ignore[arg-type]

    def table(self, seconds: float) -> list[tuple[str, ...]]:
        """Returns HEAD, one row per kind, and the total."""
        rows = [self.kinds[kind].cells(kind, seconds) for kind in sorted(self.kinds)]
        return [HEAD, *rows, self.total().cells("Aggregated", seconds)]
