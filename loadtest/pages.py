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
TIER = re.compile(r"^polyrec_embedding_(lookups|hits)_total\{([^}]*)\} (\S+)$", re.MULTILINE)
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
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
        page = answer.read().decode()
    counted: dict[str, dict[str, float]] = {"lookups": {}, "hits": {}}
    for what, inside, value in TIER.findall(page):
        counted[what][dict(LABEL.findall(inside))["tier"]] = float(value)
    tiers = {tier: (n, counted["hits"].get(tier, 0.0)) for tier, n in counted["lookups"].items()}
    plan = ask(url, "/v1/plan")
    lanes = [f"{lane['name']} ({lane['kind']})" for lane in plan.get("lanes") or ()]
    words = (
        f"paths {', '.join(path['name'] for path in plan['paths'])}; "
        f"lanes {', '.join(lanes) or 'one a device'}; policy {plan['routing']['policy']}; "
        f"default budget {plan['default_budget_ms']:g} ms"
    )
    return Served(tiers, words)
