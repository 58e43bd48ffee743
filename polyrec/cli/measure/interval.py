"""Computes a server's figures between two scrapes of /metrics, for `polyrec top`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.server.metrics.error_budget import SLO_MISSES

PHASES = ("parse", "queue", "encode", "embed", "dense", "serialise")
"""Phases of a request, in their order."""


@dataclass(frozen=True, slots=True)
class PathRow:
    """Figures of a path. rate: answers/s. share: of all answers. p99_s: NaN without answers. quality: None
    if unknown.
    """

    name: str
    rate: float
    share: float
    p50_s: float
    p99_s: float
    degraded_rate: float
    quality: float | None


@dataclass(frozen=True, slots=True)
class LaneRow:
    """Figures of a lane. busy: share of the interval in which it worked. breaker: closed, open or probing."""

    name: str
    device: str
    up: bool
    busy: float
    breaker: str
    correction: float


@dataclass(frozen=True, slots=True)
class Interval:
    """Figures of a server between two scrapes.

    model: name of the model if there are several, else None.
    rate: requests/s with any outcome. outcomes: requests/s by outcome.
    in_slo: share within the latency budget, NaN if no request counts.
    information: per second.
    phases_s: mean time per request in each phase, where a batch's time is divided among its requests; empty
    without answers.
    """

    bundle: str
    policy: str
    seconds: float
    rate: float
    rows_rate: float
    outcomes: dict[str, float]
    in_slo: float
    promised: float
    p50_s: float
    p99_s: float
    information: float
    phases_s: dict[str, float]
    queue_rows: float
    in_flight: float
    capacity_rows: float
    paths: tuple[PathRow, ...]
    lanes: tuple[LaneRow, ...]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class _Scrapes:
    """Two scrapes of one server, `seconds` apart."""

    before: MetricSamples
    after: MetricSamples
    seconds: float

    def rate(self, name: str, **labels: str) -> float:
        """Returns a counter's growth per second."""
        return (self.after.total(name, **labels) - self.before.total(name, **labels)) / self.seconds

    def answered(self, **labels: str) -> tuple[int, float, float]:
        """Returns the number of answers, and their median and p99 in seconds."""
        ok, late = (
            self.after.buckets("polyrec_request_seconds", outcome=outcome, **labels)
            - self.before.buckets("polyrec_request_seconds", outcome=outcome, **labels)
            for outcome in ("ok", "late")
        )
        both = ok if not late.total else late if not ok.total else type(ok)(ok.edges, ok.counts + late.counts)
        return both.total, both.quantile(0.5), both.quantile(0.99)


def interval(before: MetricSamples, after: MetricSamples, seconds: float) -> Interval:
    """Returns the figures of the time between two scrapes of one server."""
    scrapes = _Scrapes(before, after, seconds)
    rate = scrapes.rate
    outcomes = {
        outcome: found
        for outcome in _values(after, "polyrec_requests_total", "outcome")
        if (found := rate("polyrec_requests_total", outcome=outcome)) > 0
    }
    missed = sum(outcomes.get(outcome, 0.0) for outcome in SLO_MISSES)
    counted = missed + outcomes.get("ok", 0.0)
    paths = _paths(scrapes)
    answers_rate = sum(path.rate for path in paths)
    _, p50_s, p99_s = scrapes.answered()
    return Interval(
        bundle=_labels(after, "polyrec_build_info").get("bundle", "?"),
        policy=_labels(after, "polyrec_policy_info").get("policy", "?"),
        seconds=seconds,
        rate=sum(outcomes.values()),
        rows_rate=rate("polyrec_rows_total"),
        outcomes=outcomes,
        in_slo=outcomes.get("ok", 0.0) / counted if counted else math.nan,
        promised=after.total("polyrec_promised_share"),
        p50_s=p50_s,
        p99_s=p99_s,
        information=rate("polyrec_information_total"),
        phases_s={
            phase: rate("polyrec_phase_seconds_sum", phase=phase) / answers_rate
            for phase in (PHASES if answers_rate else ())
        },
        queue_rows=after.total("polyrec_queue_rows"),
        in_flight=after.total("polyrec_in_flight_queries"),
        capacity_rows=after.total("polyrec_capacity_rows_per_second"),
        paths=paths,
        lanes=_lanes(scrapes),
        model=next(iter(after.models), None),
    )


def _paths(scrapes: _Scrapes) -> tuple[PathRow, ...]:
    after = scrapes.after
    answered = {path: scrapes.answered(path=path) for path in _values(after, "polyrec_path_value", "path")}
    total = sum(count for count, _, _ in answered.values())
    return tuple(
        PathRow(
            path,
            count / scrapes.seconds,
            count / total if total else 0.0,
            p50_s,
            p99_s,
            scrapes.rate("polyrec_degraded_total", path=path),
            next((quality for _, quality in after.series("polyrec_path_quality", path=path)), None),
        )
        for path, (count, p50_s, p99_s) in answered.items()
    )


def _lanes(scrapes: _Scrapes) -> tuple[LaneRow, ...]:
    after = scrapes.after
    return tuple(
        LaneRow(
            lane,
            _labels(after, "polyrec_lane_info", lane=lane).get("device", "?"),
            after.total("polyrec_lane_up", lane=lane) > 0,
            scrapes.rate("polyrec_lane_busy_seconds_total", lane=lane),
            _labels(after, "polyrec_lane_breaker", lane=lane).get("state", "?"),
            after.total("polyrec_lane_correction", lane=lane),
        )
        for lane in _values(after, "polyrec_lane_up", "lane")
    )


def _values(samples: MetricSamples, name: str, label: str) -> list[str]:
    """Returns the distinct values of one label of a metric."""
    return list(dict.fromkeys(labels[label] for labels, _ in samples.series(name)))


def _labels(samples: MetricSamples, name: str, **labels: str) -> Mapping[str, str]:
    """Returns the labels of the series whose value is 1 in an information metric; empty if there is none."""
    return next((found for found, value in samples.series(name, **labels) if value), {})
