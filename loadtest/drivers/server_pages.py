"""Reads the pages of a live server that a load test needs: paths and their quality, plan, metrics."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import numpy as np

from polyrec.models.schema.batch import F64

TIMEOUT_S = 10.0
LABEL = re.compile(r'(\w+)="([^"]*)"')


def get_json(url: str, page: str) -> Any:
    """Fetches a JSON page of a server."""
    return json.loads(_fetch(url + page))


def path_qualities(url: str, model: str | None = None) -> tuple[dict[str, float], dict[str, float]]:
    """Returns quality and accuracy by path, from /v1/paths, without paths that lack the figure.

    model: one of several; None: the default.
    """
    paths = get_json(url, f"{_pages(model)}/paths")["paths"]
    quality, accuracy = (
        {path["name"]: float(path[key]) for path in paths if path.get(key) is not None}
        for key in ("quality", "accuracy")
    )
    return quality, accuracy


def _pages(model: str | None) -> str:
    """Returns the address below which a model's pages are."""
    return "/v1" if model is None else f"/v1/models/{model}"


@dataclass(frozen=True, slots=True)
class Buckets:
    """A Prometheus histogram. edges: float64 [buckets], upper edges, the last one infinite."""

    edges: F64
    counts: F64

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def __sub__(self, before: Buckets) -> Buckets:
        """Returns the difference from an earlier scrape, which has no buckets if nothing was counted yet."""
        return Buckets(self.edges, self.counts - before.counts) if before.edges.size else self

    def quantile(self, q: float) -> float:
        """Returns the q-quantile in seconds, linear within a bucket as in histogram_quantile; NaN without
        counts.
        """
        ends = np.cumsum(self.counts)
        if not ends.size or not ends[-1]:
            return float("nan")
        i = min(int(np.searchsorted(ends, q * ends[-1])), self.edges.size - 2)
        lower = self.edges[i - 1] if i else 0.0
        inside = self.counts[i]
        share = (q * ends[-1] - (ends[i] - inside)) / inside if inside else 1.0
        return float(lower + (self.edges[i] - lower) * min(share, 1.0))


class MetricSamples:
    """A parsed metrics page in Prometheus's text format: every series with its labels and value."""

    def __init__(self, page: str) -> None:
        self._series: dict[str, list[tuple[dict[str, str], float]]] = {}
        for line in page.splitlines():
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name, _, inside = series.partition("{")
                self._series.setdefault(name, []).append((dict(LABEL.findall(inside)), float(value)))

    @property
    def models(self) -> list[str]:
        """Names of the models, the default first; empty for a server of one model, whose series have no
        model label.
        """
        named = (labels.get("model") for labels, _ in self.series("polyrec_path_value"))
        return list(dict.fromkeys(name for name in named if name is not None))

    def for_model(self, model: str) -> MetricSamples:
        """Returns the series of one of several models, and those of the whole server."""
        found = MetricSamples("")
        for name, series in self._series.items():
            found._series[name] = [one for one in series if one[0].get("model", model) == model]
        return found

    def series(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yields (labels, value) of each series with that name and `labels`."""
        for found, value in self._series.get(name, ()):
            if labels.items() <= found.items():
                yield found, value

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum of the matching series; 0 if there are none."""
        return sum(value for _, value in self.series(name, **labels))

    def buckets(self, name: str, **labels: str) -> Buckets:
        """Returns the histogram `name`, summed over the matching series."""
        found: dict[float, float] = {}
        for series, value in self.series(f"{name}_bucket", **labels):
            edge = float(series["le"])
            found[edge] = found.get(edge, 0.0) + value
        edges = np.array(sorted(found))
        return Buckets(edges, np.diff([found[e] for e in edges], prepend=0.0))


def metrics_page(url: str) -> str:
    """Fetches a server's metrics as text."""
    return _fetch(f"{url}/metrics").decode()


def _fetch(address: str) -> bytes:
    """Fetches a page. Raises ValueError, or OSError, also if the answer is not HTTP."""
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read()
    except HTTPException:
        raise OSError("the answer is not HTTP/1.1, or ends early") from None
    return content


def read_metrics(url: str) -> MetricSamples:
    """Fetches and parses a server's metrics."""
    return MetricSamples(metrics_page(url))


def request_buckets(url: str, **labels: str) -> Buckets:
    """Reads polyrec_request_seconds, summed over all series with these labels."""
    return read_metrics(url).buckets("polyrec_request_seconds", **labels)


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Counters of a server at one moment, and its plan.

    tiers: memory tier -> (embedding rows looked up, rows found).
    plan: described in words.
    read_s: when they were read, by time.monotonic().
    waited_s: seconds for which its event loops waited for a processor.
    """

    tiers: dict[str, tuple[float, float]]
    plan: str
    read_s: float
    waited_s: float

    def waited_share(self, before: ServerCounters) -> float:
        """Returns the share of the time since `before` for which the event loops waited for a processor."""
        return (self.waited_s - before.waited_s) / (self.read_s - before.read_s)

    def hits_since(self, before: ServerCounters) -> dict[str, tuple[float, float]]:
        """Returns, per tier, the rows looked up since `before` and their hit rate, omitting tiers without
        lookups.
        """
        found = {}
        for tier, (lookups, hits) in self.tiers.items():
            lookups_before, hits_before = before.tiers.get(tier, (0.0, 0.0))
            if (since := lookups - lookups_before) > 0:
                found[tier] = (since, (hits - hits_before) / since)
        return found


def read_counters(url: str, model: str | None = None) -> ServerCounters:
    """Reads counters and plan of a model, by default of the default one.

    Raises OSError, ValueError or KeyError if no Polyrec server answers.
    """
    counted = read_metrics(url)
    read_s = time.monotonic()
    if counted.models:
        counted = counted.for_model(model if model in counted.models else counted.models[0])
    tiers = {
        labels["tier"]: (lookups, counted.total("polyrec_embedding_hits_total", tier=labels["tier"]))
        for labels, lookups in counted.series("polyrec_embedding_lookups_total")
    }
    plan = get_json(url, f"{_pages(model)}/plan")
    lanes = [f"{lane['name']} ({lane['kind']})" for lane in plan.get("lanes") or ()]
    words = (
        f"paths {', '.join(path['name'] for path in plan['paths'])}; "
        f"lanes {', '.join(lanes) or 'one a device'}; policy {plan['routing']['policy']}; "
        f"default budget {plan['default_budget_ms']:g} ms"
    )
    waited_s = counted.total("polyrec_loop_waited_seconds_total")
    return ServerCounters(tiers, words, read_s, waited_s)
