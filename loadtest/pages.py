"""Pages of a live server that a load test reads: what is open, how good it is, what was counted."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.outcome import F64

TIMEOUT_S = 10.0
LABEL = re.compile(r'(\w+)="([^"]*)"')


def ask(url: str, page: str) -> Any:
    """A page of a server, JSON."""
    with urllib.request.urlopen(url + page, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def accuracies(url: str) -> dict[str, float]:
    """Path -> share of rows predicted right, as the server itself has it; paths without a figure are left
    out.
    """
    found: dict[str, float] = {}
    for path in ask(url, "/v1/paths")["paths"]:
        accuracy = path.get("accuracy")
        if accuracy is None:
            accuracy = (path.get("quality") or {}).get("test", {}).get("accuracy")
        if accuracy is not None:
            found[path["name"]] = float(accuracy)
    return found


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram as Prometheus has it. edges: float64 [buckets], upper ones, the last infinite."""

    edges: F64
    counts: F64

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def __sub__(self, before: Buckets) -> Buckets:
        """What came since."""
        return Buckets(self.edges, self.counts - before.counts)

    def quantile(self, q: float) -> float:
        """Seconds below which a share q lies, linear within a bucket as in histogram_quantile; or NaN."""
        ends = np.cumsum(self.counts)
        if not ends.size or not ends[-1]:
            return float("nan")
        i = min(int(np.searchsorted(ends, q * ends[-1])), self.edges.size - 2)
        lower = self.edges[i - 1] if i else 0.0
        inside = self.counts[i]
        share = (q * ends[-1] - (ends[i] - inside)) / inside if inside else 1.0
        return float(lower + (self.edges[i] - lower) * min(share, 1.0))


def request_buckets(url: str, **labels: str) -> Buckets:
    """polyrec_request_seconds, all series with these labels together."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
        return read_buckets(answer.read().decode(), "polyrec_request_seconds", labels)


def read_buckets(text: str, name: str, labels: Mapping[str, str]) -> Buckets:
    """One histogram of a metrics page, summed over the series that carry `labels`."""
    found: dict[float, float] = {}
    for line in text.splitlines():
        if not line.startswith(f"{name}_bucket{{"):
            continue
        inside, _, value = line.removeprefix(f"{name}_bucket{{").rpartition("} ")
        own = dict(LABEL.findall(inside))
        if all(own.get(key) == wanted for key, wanted in labels.items()):
            edge = float(own["le"].replace("+Inf", "inf"))
            found[edge] = found.get(edge, 0.0) + float(value)
    edges = np.array(sorted(found))
    return Buckets(edges, np.diff([found[e] for e in edges], prepend=0.0))
