"""How the promise is kept, by kind of request: what Locust's own table does not have a column for.

Answers in, counts out; counts of several workers add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

HEAD = ("Name", "# asked", "in budget", "degraded", "refused early", "goodput rows/s", "late sender ms")


@dataclass(slots=True)
class Kept:
    """Requests asked, answered within budget, at degraded quality, refused (429), rows answered in budget.

    lag_s: seconds that the sender itself was late in all.
    """

    asked: int = 0
    in_budget: int = 0
    degraded: int = 0
    refused: int = 0
    rows: int = 0
    lag_s: float = 0.0

    def add(self, other: Kept) -> None:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    @property
    def share(self) -> float:
        """Of the requests, those answered in budget; 1 of none."""
        return self.in_budget / self.asked if self.asked else 1.0

    def cells(self, name: str, seconds: float) -> tuple[str, ...]:
        """A row under HEAD."""
        n = max(self.asked, 1)
        return (
            name,
            str(self.asked),
            f"{100 * self.share:.2f}%",
            f"{100 * self.degraded / n:.2f}%",
            f"{100 * self.refused / n:.2f}%",
            f"{self.rows / max(seconds, 1e-9):.0f}",
            f"{1e3 * self.lag_s / n:.2f}",
        )


class Promise:
    """Counts by kind of request."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kept] = {}

    def answered(
        self,
        kind: str,
        rows: int,
        latency_s: float,
        budget_s: float,
        status: int,
        degraded: bool,
        lag_s: float,
    ) -> None:
        kept = self.kinds.setdefault(kind, Kept())
        kept.asked += 1
        kept.lag_s += lag_s
        kept.refused += status == 429
        if 200 <= status < 300:
            kept.degraded += degraded
            if latency_s <= budget_s:
                kept.in_budget += 1
                kept.rows += rows

    def total(self) -> Kept:
        total = Kept()
        for kept in self.kinds.values():
            total.add(kept)
        return total

    def taken(self) -> dict[str, dict[str, float]]:
        """The counts, which begin anew: what a worker tells its master."""
        told = {kind: asdict(kept) for kind, kept in self.kinds.items()}
        self.kinds = {}
        return told

    def merge(self, told: Mapping[str, Mapping[str, float]]) -> None:
        """Adds what a worker told."""
        for kind, counts in told.items():
            self.kinds.setdefault(kind, Kept()).add(Kept(**counts))  # type: ignore[arg-type]

    def table(self, seconds: float) -> list[tuple[str, ...]]:
        """HEAD, a row a kind, and all together."""
        rows = [self.kinds[kind].cells(kind, seconds) for kind in sorted(self.kinds)]
        return [HEAD, *rows, self.total().cells("Aggregated", seconds)]
