"""Computes log-linear histograms of latencies like HdrHistogram, with buckets of equal relative width.

They are small enough for a JSON file, and precise enough (3%) to merge runs and compute any percentile of
all, which the percentiles of single runs do not allow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polyrec.models.schema.batch import F64

STEPS = 32
"""Buckets from a power of two to the next."""
UNIT_S = 1e-6


def histogram(latency_s: F64) -> dict[str, Any]:
    """Counts latencies: {"upper_ms": upper edges of the non-empty buckets, "count": of each}."""
    upper, counts = np.unique(upper_edges(latency_s), return_counts=True)
    return {"upper_ms": np.round(1e3 * upper, 6).tolist(), "count": counts.tolist()}


def upper_edges(latency_s: F64) -> F64:
    """Returns the upper edge, in seconds, of each value's bucket: at least the value, at most 1/32 above
    it.
    """
    units = np.maximum(np.asarray(latency_s, np.float64) / UNIT_S, 1.0)
    octave = np.floor(np.log2(units))
    step = np.ceil((units / 2.0**octave - 1) * STEPS)
    edges: F64 = 2.0**octave * (1 + step / STEPS) * UNIT_S
    return edges
