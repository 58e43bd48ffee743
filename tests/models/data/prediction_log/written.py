"""Writes prediction logs for tests, and reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from polyrec.models.data.prediction_log.log_format import (
    LABEL_COLUMNS,
    LOG_COLUMNS,
    stored_types,
)
from polyrec.models.data.prediction_log.reader import PredictionLogReader
from polyrec.models.schema.schema import Schema

NOON_S = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()
HOUR_S = 3600.0
SCHEMA = Schema.model_validate(
    {
        "name": "clicks",
        "dense": [{"name": "price"}],
        "categorical": [
            {"name": "user", "role": "context"},
            {"name": "recent", "role": "context", "table": "item", "pooling": "mean"},
            {"name": "item"},
        ],
        "label": {"column": "clicked"},
        "group": "request",
        "split": {"rule": "time", "columns": ["at"]},
    }
)


def answered(
    request_id: str, seconds: float, items: Sequence[str | None], user: str = "u", row: int = 0
) -> dict[str, Any]:
    """A stored row, answered some seconds after noon. row: its place in the request."""
    at_us = int(1e6 * (NOON_S + seconds))
    return {
        "log.time": at_us,
        "log.key": at_us << 12,
        "log.row": row,
        "log.request_id": request_id,
        "log.path": "table@cpu",
        "log.version": "v",
        "log.reason": None,
        "log.scores": [0.5] * len(items),
        "user": user,
        "recent": ["x", "y"],
        "price": [float(i) for i in range(len(items))],
        "item": list(items),
    }


def label(request_id: str, row: int, value: float, seconds: float | None) -> dict[str, Any]:
    at = None if seconds is None else int(1e6 * (NOON_S + seconds))
    return {"request_id": request_id, "row": row, "label": value, "time": at}


def write(
    folder: Path, kind: str, hour: str, rows: Sequence[Mapping[str, Any]], name: str = "part-0"
) -> None:
    columns = (
        LABEL_COLUMNS if kind == "feedback" else pa.schema([*LOG_COLUMNS, *stored_types(SCHEMA).items()])
    )
    file = folder / kind / hour / f"{name}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), columns), file)


def read(folder: Path, now_s: float = NOON_S + 10 * HOUR_S) -> list[dict[str, Any]]:
    reader = PredictionLogReader(folder, SCHEMA, now_s=now_s)
    return [row for batch in reader.batches(reader.columns) for row in batch.to_pylist()]


def clicked(folder: Path, now_s: float = NOON_S + 10 * HOUR_S) -> dict[str, float]:
    return {row["item"]: row["clicked"] for row in read(folder, now_s)}
