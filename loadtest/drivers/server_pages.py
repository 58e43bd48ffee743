"""Pages of a live server that a load test reads: what is open, how good it is, what was counted."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrec.models.schema.batch import F64

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
        """What came since; a server that had counted nothing yet had no buckets either."""
        return Buckets(self.edges, self.counts - before.counts) if before.edges.size else self

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


class Samples:
    """A metrics page in Prometheus's text format, read: every series with its labels and its value."""

    def __init__(self, page: str) -> None:
        self._series: dict[str, list[tuple[dict[str, str], float]]] = {}
        for line in page.splitlines():
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name, _, inside = series.partition("{")
                self._series.setdefault(name, []).append((dict(LABEL.findall(inside)), float(value)))

    def series(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """(labels, value) of each series of that name that carries `labels`."""
        for own, value in self._series.get(name, ()):
            if labels.items() <= own.items():
                yield own, value

    def total(self, name: str, **labels: str) -> float:
        """The sum of these series; 0 where there is none."""
        return sum(value for _, value in self.series(name, **labels))

    def buckets(self, name: str, **labels: str) -> Buckets:
        """The histogram `name`, summed over these series."""
        found: dict[float, float] = {}
        for own, value in self.series(f"{name}_bucket", **labels):
            edge = float(own["le"])
            found[edge] = found.get(edge, 0.0) + value
        edges = np.array(sorted(found))
        return Buckets(edges, np.diff([found[e] for e in edges], prepend=0.0))


def metrics_page(url: str) -> str:
    """A server's metrics, as it writes them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
        page: str = answer.read().decode()
    return page


def samples(url: str) -> Samples:
    """A server's metrics as they are now."""
    return Samples(metrics_page(url))


def request_buckets(url: str, **labels: str) -> Buckets:
    """polyrec_request_seconds, all series with these labels together."""
    return samples(url).buckets("polyrec_request_seconds", **labels)


@dataclass(frozen=True, slots=True)
class Served:
    """What a server had counted at one moment, and what it followed.

    tiers: tier of memory -> embedding rows looked up there, and found. plan: in words, for the reader.
    """

    tiers: dict[str, tuple[float, float]]
    plan: str

    def hits_since(self, before: Served) -> dict[str, tuple[float, float]]:
        """Tier -> rows looked up since, and the share that was found; tiers without look-ups are left out."""
        found = {}
        for tier, (lookups, hits) in self.tiers.items():
            asked, there = before.tiers.get(tier, (0.0, 0.0))
            if lookups > asked:
                found[tier] = (lookups - asked, (hits - there) / (lookups - asked))
        return found


def served(url: str) -> Served:
    """Raises OSError, ValueError or KeyError where no Polyrec server answers."""
    counted = samples(url)
    tiers = {
        own["tier"]: (lookups, counted.total("polyrec_embedding_hits_total", tier=own["tier"]))
        for own, lookups in counted.series("polyrec_embedding_lookups_total")
    }
    plan = ask(url, "/v1/plan")
    lanes = [f"{lane['name']} ({lane['kind']})" for lane in plan.get("lanes") or ()]
    words = (
        f"paths {', '.join(path['name'] for path in plan['paths'])}; "
        f"lanes {', '.join(lanes) or 'one a device'}; policy {plan['routing']['policy']}; "
        f"default budget {plan['default_budget_ms']:g} ms"
    )
    return Served(tiers, words)
