"""Joins the labels of a few requests of a prediction log, with the clients that sent them.

The result is the same as for training (models/data/prediction_log/): of two labels of a row the later one
counts, and only labels within the log's window count. Files are read in parts, so that many labels take time
but not memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polyrec.models.data.prediction_log.labels import CLOCKS_S, POSITIVE, label_files_of, read_labels
from polyrec.models.schema.batch import F32, F64, I64

OPERATOR = ""
"""Client name of labels in files that the operator added to the log."""
NEVER = np.iinfo(np.int64).min
ALWAYS = np.iinfo(np.int64).max
"""Time of a label without a time: inside every window, and later than all others."""


@dataclass(slots=True, eq=False)
class RequestLabels:
    """Labels of one request.

    at_us: Unix time in microseconds at which it was answered. values: float64 [rows], 0 for no label.
    given_us: int64 [rows], time of the label, NEVER for no label. clients: clients that sent labels.
    """

    request_id: str
    at_us: int
    values: F64
    given_us: I64
    clients: set[str] = field(default_factory=set)

    @classmethod
    def unlabeled(cls, request_id: str, at_us: int, rows: int) -> RequestLabels:
        return cls(request_id, at_us, np.zeros(rows), np.full(rows, NEVER))

    @property
    def binary(self) -> F32:
        """The labels as 0 or 1, float32 [rows]."""
        return (self.values > POSITIVE).astype(np.float32)

    def add(self, rows: I64, values: F64, given_us: I64, clients: Sequence[str], window_us: int) -> None:
        """Adds labels in the order in which they are stored; ignores those of other rows or times."""
        good = (rows >= 0) & (rows < self.values.size) & np.isfinite(values)
        good &= (given_us == ALWAYS) | (given_us <= self.at_us + window_us)
        early = given_us < self.at_us - round(1e6 * CLOCKS_S)
        good &= ~(early & np.array([client != OPERATOR for client in clients], bool))
        if not good.any():
            return
        self.clients.update(clients[i] for i in np.flatnonzero(good).tolist())
        rows, values, given_us = rows[good], values[good], given_us[good]
        order = np.argsort(given_us, kind="stable")
        rows, values, given_us = rows[order], values[order], given_us[order]
        # of a row's labels the last in this order, which is the latest
        last = rows.size - 1 - np.unique(rows[::-1], return_index=True)[1]
        last = last[given_us[last] >= self.given_us[rows[last]]]
        self.values[rows[last]] = values[last]
        self.given_us[rows[last]] = given_us[last]


def join_labels(folder: Path, requests: Sequence[RequestLabels], window_s: float) -> None:
    """Adds a log's labels to requests with distinct ids. window_s: its label window. Raises DataError."""
    if not requests:
        return
    window_us = round(1e6 * window_s)
    times = [request.at_us for request in requests]
    ids = pa.array([request.request_id for request in requests], pa.string())
    files = label_files_of(folder, _utc(min(times)), _utc(max(times)), timedelta(seconds=window_s))
    for file in files:
        for table in read_labels(file, ids):
            request = pc.index_in(table.column("request_id"), ids).to_numpy()
            rows = table.column("row").fill_null(-1).to_numpy().astype(np.int64)
            values = table.column("label").fill_null(np.nan).to_numpy()
            given_us = table.column("time").cast(pa.int64()).fill_null(ALWAYS).to_numpy()
            clients = np.array(table.column("client").fill_null(OPERATOR).to_pylist(), object)
            for i in np.unique(request).tolist():
                at = np.flatnonzero(request == i)
                requests[i].add(rows[at], values[at], given_us[at], clients[at].tolist(), window_us)


def _utc(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1e6, UTC)
