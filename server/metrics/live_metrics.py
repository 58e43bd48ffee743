"""Metrics of the prediction log, of live quality (updated with each report) and of feature drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from polyrec.server.live_quality.feature_drift import DriftDocument, FeatureDrift
from polyrec.server.live_quality.report import Ends, PathReport, Report
from polyrec.server.metrics.instruments import Family, Gauge, Registry

SERVED = "served"
ENDS = ("value", "low", "high")


class PredictionLogMetrics:
    """Counts of the prediction log."""

    def __init__(self, registry: Registry) -> None:
        requests = registry.counter(
            "polyrec_prediction_log_requests",
            "Requests of the prediction log. written: in files; invalid: could not be parsed again; lost:"
            " could not be written; dropped: the writer was too slow, or had ended.",
            "outcome",
        )
        labels = registry.counter(
            "polyrec_prediction_log_labels",
            "Requests with labels. written: in files; lost: could not be written.",
            "outcome",
        )
        self.feedback = registry.counter(
            "polyrec_feedback_requests", "Requests for which labels were accepted (POST /v1/feedback)."
        )
        self._logged = {"requests": requests, "labels": labels}
        self.counts: Callable[[], Mapping[tuple[str, str], int]] = dict

    def set_counts(self, counts: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """Sets the function that counts `requests` and `labels` by outcome."""
        self.counts = counts

    def refresh(self) -> None:
        """Updates the counts."""
        for (kind, outcome), number in self.counts().items():
            self._logged[kind].labels(outcome).value = number


class LiveMetrics:
    """Gauges of the last report."""

    def __init__(self, registry: Registry) -> None:
        gauge = registry.gauge
        self._quality = gauge(
            "polyrec_live_quality",
            "Quality on the window's labeled requests, scored again by every path. metric: information"
            " (gain), calibration (mean prediction / mean label) or auc; end: value, or low or high of its"
            " 95% interval. Path served: the answers as they were sent.",
            *("path", "version", "metric", "end"),
        )
        self._difference = gauge(
            "polyrec_live_difference",
            "Live information gain minus the reference path's. end: value, or low or high of its 99%"
            " interval with any one client's labels left out. Routing may follow it.",
            *("path", "end"),
        )
        self._moved = gauge(
            "polyrec_live_value_change",
            "Change of a path's value by following live quality; 0: the offline value is used.",
            "path",
        )
        self._counts = gauge(
            "polyrec_live_window",
            "Size of the window: requests, rows, positives, clients that sent labels.",
            "of",
        )
        self._left_out = gauge(
            "polyrec_live_left_out",
            "Sampled requests since measuring began. disputed: omitted, because several clients labeled them;"
            " invalid: omitted, because they could not be parsed again; differing: kept, but the path that"
            " answered now gives other scores.",
            "reason",
        )
        self._late = gauge(
            "polyrec_live_late_positives",
            "Share of the positives that came in the last tenth of the log's window. If it is large, the"
            " window is too short.",
        )
        self._age = gauge("polyrec_live_age_seconds", "Age of the last report of live quality.")
        self._index = gauge(
            "polyrec_feature_psi",
            "Population stability index of a feature: served rows against the bundle's reference, minus the"
            " part explained by chance. Below 0.1 little has changed, above 0.25 much. Absent without a"
            " reference, or with fewer than 200 sampled requests.",
            *("feature", "version", "window"),
        )
        self._unknown = gauge(
            "polyrec_feature_unknown_share",
            "Share of a feature's lookups whose value is not in the vocabulary, in the window's served rows;"
            " window reference: in the test rows.",
            *("feature", "version", "window"),
        )
        self._sampled = gauge(
            "polyrec_feature_requests",
            "Requests in a window, on which feature drift is measured.",
            *("version", "window"),
        )
        self._drifts: tuple[FeatureDrift, ...] = ()
        self._every: tuple[Family[Gauge], ...] = (
            *(self._quality, self._difference, self._moved, self._counts),
            *(self._left_out, self._late, self._age),
        )
        self.clear()

    def clear(self) -> None:
        """Clears the last report and the changes of values."""
        for family in self._every:
            family.clear()

    def set_drifts(self, drifts: Sequence[FeatureDrift]) -> None:
        """Sets the feature drifts that are read at every scrape."""
        self._drifts = tuple(drifts)

    def drifted(self, now_s: float) -> list[DriftDocument]:
        """Returns the feature drift of each bundle."""
        return [drift.document(now_s) for drift in self._drifts]

    def refresh(self, now_s: float) -> None:
        """Updates the feature drift."""
        for family in (self._index, self._unknown, self._sampled):
            family.clear()
        for found in self.drifted(now_s):
            if not found.measured:
                continue
            for window, requests in found.requests.items():
                self._sampled.labels(found.version, window).set(requests)
            for window, features in found.features.items():
                for name, one in features.items():
                    if one.index is not None:
                        self._index.labels(name, found.version, window).set(one.index)
                    self._unknown.labels(name, found.version, window).set(one.unknown)
                    self._unknown.labels(name, found.version, "reference").set(one.expected)

    def age(self, seconds: float) -> None:
        """Sets the age of the last report."""
        self._age.only.set(seconds)

    def set_value_change(self, path: str, by: float) -> None:
        """Sets the change of a path's value."""
        self._moved.labels(path).set(by)

    def show(self, report: Report | None) -> None:
        """Sets the gauges from a report; None clears them."""
        for family in (self._quality, self._difference, self._counts, self._left_out, self._late):
            family.clear()
        if report is None:
            return
        of = {"requests": report.requests, "rows": report.rows, "positives": report.positives}
        for name, number in (of | {"clients": len(report.clients)}).items():
            self._counts.labels(name).set(number)
        for reason in ("disputed", "invalid", "differing"):
            self._left_out.labels(reason).set(getattr(report, reason))
        if report.late_positives is not None:
            self._late.only.set(report.late_positives)
        for name, path in report.paths.items():
            self._show(name, path)
            _set(self._difference, (name,), path.confirmed)
        if report.served is not None:
            self._show(SERVED, report.served)

    def _show(self, name: str, path: PathReport) -> None:
        for metric in ("information", "calibration", "auc"):
            _set(self._quality, (name, path.version, metric), getattr(path, metric))


def _set(family: Family[Gauge], labels: tuple[str, ...], ends: Ends | None) -> None:
    for end, number in zip(ENDS, ends or (), strict=False):
        family.labels(*labels, end).set(number)
