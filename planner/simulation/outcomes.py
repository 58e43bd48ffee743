"""Outcomes of simulated queries as arrays, and figures that summarize them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from polyrec.models.schema.batch import F64, I64
from polyrec.planner.simulation.trace import Trace


class Status(IntEnum):
    """Outcome of a query."""

    PENDING = 0
    ANSWERED = 1
    REJECTED = 2
    EXPIRED = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """Summary of a span of time; field names are JSON keys.

    goodput, information, correct: rows/s answered within their deadline, unweighted, weighted by quality, and
        weighted by accuracy (None if a path has no accuracy).
    in_budget, of_taken: queries answered within budget, as a share of all and of those not rejected.
    refused: share of queries that were rejected.
    late: share answered after the deadline.
    p50_s, p99_s: latency quantiles, from arrival to answer.
    quality: mean over answered rows.
    paths: share of answered rows, by path.
    """

    queries: int
    rows_s: float
    goodput: float
    information: float
    correct: float | None
    in_budget: float
    of_taken: float
    refused: float
    expired: float
    late: float
    p50_s: float
    p99_s: float
    quality: float
    paths: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Arrays with one entry per query in order of arrival: int64 or float64 [queries].

    path: index of the path that answered, -1 if none did.
    finish_s: time at which the query was answered, rejected or expired.
    """

    names: tuple[str, ...]
    qualities: tuple[float, ...]
    accuracies: tuple[float | None, ...]
    arrival_s: F64
    rows: I64
    deadline_s: F64
    finish_s: F64
    path: I64
    status: I64
    seconds: float

    @staticmethod
    def of(trace: Trace, finish_s: F64, path: I64, status: I64) -> Outcomes:
        """Returns what became of a trace's queries."""
        arrival_s = trace.arrival_s
        return Outcomes(
            names=tuple(p.name for p in trace.paths),
            qualities=tuple(p.quality for p in trace.paths),
            accuracies=tuple(p.accuracy for p in trace.paths),
            arrival_s=arrival_s,
            rows=trace.rows,
            deadline_s=arrival_s + trace.budgets,
            finish_s=finish_s,
            path=path,
            status=status,
            seconds=float(arrival_s[-1]) if arrival_s.size else 0.0,
        )

    @property
    def information(self) -> F64:
        """The information (rows x quality) of each query answered in time, else 0: float64 [queries]."""
        good = (self.status == Status.ANSWERED) & (self.finish_s <= self.deadline_s)
        return np.where(good, self.rows * np.asarray(self.qualities)[self.path], 0.0)

    def figures(self, since_s: float = 0.0, until_s: float | None = None) -> Figures:
        """Summarizes queries that arrived in [since_s, until_s)."""
        until_s = self.seconds if until_s is None else until_s
        span = max(until_s - since_s, 1e-9)
        chosen = (self.arrival_s >= since_s) & (self.arrival_s < until_s)
        rows, path, status = self.rows[chosen], self.path[chosen], self.status[chosen]
        finish, deadline = self.finish_s[chosen], self.deadline_s[chosen]
        answered = status == Status.ANSWERED
        good = answered & (finish <= deadline)
        quality = np.asarray(self.qualities)[path]
        accuracy = None if None in self.accuracies else np.asarray(self.accuracies, np.float64)[path]
        latency_s = (finish - self.arrival_s[chosen])[answered]
        n = max(1, rows.size)
        rejected = int((status == Status.REJECTED).sum())
        by_path = np.bincount(path[answered], weights=rows[answered], minlength=len(self.names))
        all_answered = float(rows[answered].sum())
        return Figures(
            queries=int(rows.size),
            rows_s=float(rows.sum() / span),
            goodput=float(rows[good].sum() / span),
            information=float((rows * quality)[good].sum() / span),
            correct=None if accuracy is None else float((rows * accuracy)[good].sum() / span),
            in_budget=float(good.sum() / n),
            of_taken=float(good.sum() / max(1, rows.size - rejected)),
            refused=rejected / n,
            expired=float((status == Status.EXPIRED).sum() / n),
            late=float((answered & ~good).sum() / n),
            p50_s=float(np.quantile(latency_s, 0.5)) if latency_s.size else 0.0,
            p99_s=float(np.quantile(latency_s, 0.99)) if latency_s.size else 0.0,
            quality=float((rows * quality)[answered].sum() / all_answered) if all_answered else 0.0,
            paths={
                name: float(share / all_answered) if all_answered else 0.0
                for name, share in zip(self.names, by_path, strict=True)
            },
        )

    def over_time(self, step_s: float) -> list[dict[str, Any]]:
        """Summarizes consecutive time steps of step_s seconds."""
        steps = np.arange(0.0, self.seconds, step_s)
        spans = ((float(at), min(float(at) + step_s, self.seconds)) for at in steps)
        return [{"from_s": at, **self.figures(at, until).as_dict()} for at, until in spans]
