"""Replays recorded arrival times as a schedule, faster or slower.

Recorded times have the bursts, nights and order of requests that generated arrivals lack. Times with a
resolution of seconds are spread over their second, from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.models.data.reader import open_data
from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.schema import Schema


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded departures and the queries that were sent.

    due_s: float64 [requests], seconds from the first, ascending. query: int64 [requests], number of the
    data's request that leaves then. recorded_s: duration of the recording.
    """

    due_s: F64
    query: I64
    recorded_s: float

    def first(self, seconds: float) -> Replay:
        """Returns the requests due in the first `seconds`."""
        end = int(np.searchsorted(self.due_s, seconds))
        return Replay(self.due_s[:end], self.query[:end], self.recorded_s)


def replay(
    times: F64, firsts: I64, *, speed: float = 1.0, rate: float | None = None, seed: int = 0
) -> Replay:
    """Builds the schedule. times: float64 [rows], seconds. firsts: int64 [requests], first row of each.

    speed: 60 replays an hour in a minute. rate: mean rate, as an alternative to a speed.
    Raises LoadError if there are no requests, or for a rate if all requests have the same time.
    """
    if not firsts.size:
        raise LoadError("there are no requests to replay")
    at = times[firsts].astype(np.float64)
    if np.array_equal(at, np.floor(at)):
        at += np.random.default_rng(seed).random(at.size)
    order = np.argsort(at, kind="stable")
    at = at[order] - at[order[0]]
    recorded = float(at[-1])
    if rate is not None:
        if not recorded:
            raise LoadError("all requests have the same time; they cannot be replayed at a rate")
        speed = rate * recorded / at.size
    if not speed > 0:
        raise LoadError(f"a speed of {speed:g}: give one above 0")
    return Replay(at / speed, order, recorded)


def read_times(path: str | Path, schema: Schema, column: str, rows: int) -> F64:
    """Reads the times of the first `rows` rows, in seconds, float64 [rows]. Raises DataError or LoadError."""
    reader = open_data(path, schema)
    if column not in reader.columns:
        raise LoadError(f"'{path}' has no column '{column}' to replay by; it has {', '.join(reader.columns)}")
    found, parts = 0, []
    for batch in reader.batches((column,), min(rows, 65536)):
        values = batch.column(0)
        if values.null_count:
            raise LoadError(f"'{path}': column '{column}' lacks a time in some rows")
        parts.append(pc.cast(values, "float64").to_numpy(zero_copy_only=False)[: rows - found])
        found += parts[-1].size
        if found == rows:
            break
    return np.concatenate(parts) if parts else np.empty(0)
