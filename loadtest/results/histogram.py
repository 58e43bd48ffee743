"""A log-linear histogram of latencies like HdrHistogram: buckets of the same relative width.

Latencies in, counts by bucket out: small enough for a JSON file, exact enough (3%) to merge runs and compute
any percentile of them, which percentiles of single runs do not allow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polyrec.models.schema.batch import F64

STEPS = 32
"""Buckets from a power of two to the next."""
UNIT_S = 1e-6


def histogram(latency_s: F64) -> dict[str, Any]:
    """Counts latencies: {"upper_ms": upper edges of the buckets that are not empty, "count": of each}."""
    upper, counts = np.unique(upper_edges(latency_s), return_counts=True)
    return {"upper_ms": np.round(1e3 * upper, 6).tolist(), "count": counts.tolist()}


def upper_edges(latency_s: F64) -> F64:
    """The upper edge, in seconds, of the bucket of each value: at least it, at most 1/32 above."""
    units = np.maximum(np.asarray(latency_s, np.float64) / UNIT_S, 1.0)
    octave = np.floor(np.log2(units))
    step = np.ceil((units / 2.0**octave - 1) * STEPS)
    edges: F64 = 2.0**octave * (1 + step / STEPS) * UNIT_S
    return edges
