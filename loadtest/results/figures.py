"""Computes the service-level figures of a run from its `Outcome` and the quality of each path.

Goodput counts rows answered within their budget, per second of the schedule. Information weights each of them
with the quality of the path that answered, since the labels are unknown while serving. Correct predictions
(MP-Rec, ASPLOS'23, section 5) weight them with its accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyrec.loadtest.results.outcome import NO_PATH, Fate, Outcome, percentile, percentiles_ms
from polyrec.models.schema.batch import F64

PERCENTILES = (50.0, 90.0, 99.0)
MIN_IN_SLICE = 50


@dataclass(frozen=True, slots=True)
class Figures:
    """Service-level figures. Names are the keys of the JSON results.

    Shares are of all requests. Latencies are of answers (2xx), from the intended departure.
    rate: requests/s due. goodput: rows/s within budget. information: rows/s, weighted by quality.
    quality: mean over those rows, None if a path's quality is unknown. correct: rows/s, weighted by accuracy.
    mix: path -> share of the answered rows. refused: rejected with 429.
    """

    requests: int
    rate: float
    ok: float
    late: float
    refused: float
    expired: float
    unavailable: float
    other: float
    degraded: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    max_ms: float | None
    goodput: float
    information: float | None
    quality: float | None
    correct: float | None
    mix: dict[str, float]

    def meets_slo(self, slo_s: float, share: float = 0.99) -> bool:
        """Returns whether p99 of the answers is within slo_s, and `share` of all requests were answered in
        time.
        """
        return self.p99_ms is not None and self.p99_ms <= 1e3 * slo_s and self.ok >= share


NOT_KNOWN: Mapping[str, float] = {}


def figures(
    outcome: Outcome, quality: Mapping[str, float], accuracy: Mapping[str, float] = NOT_KNOWN
) -> Figures:
    """Computes the figures; zero or None without requests. quality, accuracy: by path."""
    n = max(outcome.due_s.size, 1)
    fate = outcome.fate
    shares = np.bincount(fate, minlength=len(Fate)) / n
    answered = outcome.answered
    p50, p90, p99, p99_9, top = percentiles_ms(outcome.latency_s[answered])
    in_time = fate == Fate.OK
    rows_in_time = int(outcome.rows[in_time].sum())
    by_path = _rows_by_path(outcome, in_time)
    information = _weighed(by_path, outcome.paths, quality)
    correct = _weighed(by_path, outcome.paths, accuracy)
    seconds = max(outcome.seconds, 1e-9)
    answered_by = _rows_by_path(outcome, answered)
    mix = {path: float(rows) for path, rows in zip(outcome.paths, answered_by, strict=True) if rows}
    total = sum(mix.values())
    return Figures(
        requests=outcome.due_s.size,
        rate=outcome.due_s.size / seconds,
        ok=float(shares[Fate.OK]),
        late=float(shares[Fate.LATE]),
        refused=float(shares[Fate.REJECTED]),
        expired=float(shares[Fate.EXPIRED]),
        unavailable=float(shares[Fate.UNAVAILABLE]),
        other=float(shares[Fate.OTHER]),
        degraded=float(outcome.degraded[answered].sum()) / n,
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        p99_9_ms=p99_9,
        max_ms=top,
        goodput=rows_in_time / seconds,
        information=None if information is None else information / seconds,
        quality=None if information is None or not rows_in_time else information / rows_in_time,
        correct=None if correct is None else correct / seconds,
        mix={path: rows / total for path, rows in sorted(mix.items(), key=lambda kv: -kv[1])},
    )


def _rows_by_path(outcome: Outcome, of: NDArray[np.bool_]) -> F64:
    chosen = of & (outcome.path != NO_PATH)
    return np.bincount(
        outcome.path[chosen], weights=outcome.rows[chosen], minlength=len(outcome.paths)
    ).astype(np.float64)


def _weighed(rows: F64, paths: Sequence[str], figure: Mapping[str, float]) -> float | None:
    """Sums rows weighted by a figure of their path; None if a path that answered lacks it."""
    used = [(r, figure.get(path)) for r, path in zip(rows.tolist(), paths, strict=True) if r]
    if any(a is None for _, a in used):
        return None
    return float(sum(r * a for r, a in used if a is not None))


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run in slices of equal length. All arrays are [slices], NaN without data.

    at_s: middle of each slice. latency_ms: [percentiles, slices], of the answers due in it.
    rate: requests/s due. fates: [Fate, slices], requests/s. mix: [paths, slices], share of rows answered.
    goodput: rows/s in budget. quality: mean over those rows. in_flight: requests in flight at the slice's
    end.
    """

    at_s: F64
    slice_s: float
    percentiles: tuple[float, ...]
    latency_ms: F64
    rate: F64
    fates: F64
    paths: tuple[str, ...]
    mix: F64
    goodput: F64
    quality: F64
    in_flight: F64


def timeline(outcome: Outcome, quality: Mapping[str, float], slices: int = 120) -> Timeline:
    """Splits a run into slices by intended departure, so that rejections count where requests arrived."""
    slices = max(1, min(slices, outcome.due_s.size // MIN_IN_SLICE))
    edges = np.linspace(outcome.begin_s, outcome.end_s, slices + 1)
    slice_s = float(edges[1] - edges[0])
    of = np.clip(np.searchsorted(edges, outcome.due_s, side="right") - 1, 0, slices - 1)
    fate, answered = outcome.fate, outcome.answered
    in_time = fate == Fate.OK

    def per_slice(chosen: NDArray[np.bool_], weights: F64 | None = None) -> F64:
        return np.bincount(
            of[chosen], weights=None if weights is None else weights[chosen], minlength=slices
        ).astype(np.float64)

    all_requests = np.ones(outcome.due_s.size, bool)
    rows = outcome.rows.astype(np.float64)
    answers = [1e3 * outcome.latency_s[answered & (of == i)] for i in range(slices)]
    latency = np.array(
        [[percentile(v, q) if v.size else np.nan for v in answers] for q in PERCENTILES], np.float64
    )
    by_path = np.array(
        [per_slice(answered & (outcome.path == i), rows) for i in range(len(outcome.paths))]
    ).reshape(len(outcome.paths), slices)
    good_by_path = np.array(
        [per_slice(in_time & (outcome.path == i), rows) for i in range(len(outcome.paths))]
    ).reshape(len(outcome.paths), slices)
    worth = np.array([quality.get(path, np.nan) for path in outcome.paths])
    with np.errstate(invalid="ignore", divide="ignore"):
        mix = by_path / by_path.sum(0)
        known = np.where(good_by_path > 0, good_by_path * worth[:, None], 0.0)
        mean = known.sum(0) / good_by_path.sum(0)
    ends = np.sort((outcome.due_s + outcome.latency_s)[~np.isnan(outcome.latency_s)])
    out = np.searchsorted(outcome.due_s, edges[1:]) - np.searchsorted(ends, edges[1:])
    return Timeline(
        at_s=(edges[1:] + edges[:-1]) / 2,
        slice_s=slice_s,
        percentiles=PERCENTILES,
        latency_ms=latency,
        rate=per_slice(all_requests) / slice_s,
        fates=np.array([per_slice(fate == f) for f in Fate]) / slice_s,
        paths=outcome.paths,
        mix=mix,
        goodput=per_slice(in_time, rows) / slice_s,
        quality=mean,
        in_flight=out.astype(np.float64),
    )
