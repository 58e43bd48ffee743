"""Writes rows of data as the prediction log of a server that answered these requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polyrec.models.data.prediction_log.log_format import (
    FEEDBACK,
    HOUR,
    KEY,
    KEY_BITS,
    LABEL_COLUMNS,
    LOG_COLUMNS,
    PATH,
    REASON,
    REQUEST_ID,
    REQUESTS,
    ROW,
    RULES,
    SCORES,
    TIME,
    TIME_TYPE,
    VERSION,
    LogRules,
    stored_names,
    stored_types,
)
from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.schema import Schema

CLICK_AFTER_US = 1_000_000


def request_starts(rows: pa.Table, schema: Schema) -> I64:
    """Returns the first row of each request, int64 [requests]; rows of a request are neighbors."""
    group = rows.column(schema.group).to_numpy()
    return np.concatenate(([0], np.flatnonzero(group[1:] != group[:-1]) + 1)).astype(np.int64)


def write_log(
    folder: Path, rows: pa.Table, schema: Schema, at_s: F64, window_s: float = 60.0, part: str = "part-0"
) -> None:
    """Adds rows to a log, one file per hour and kind.

    rows: the schema's columns and its label; rows with a label above .5 get feedback. at_s: float64
    [requests], Unix time of each answer, ascending. part: name of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rules = LogRules(for_schema=schema.name, features=stored_names(schema), window_s=window_s)
    (folder / RULES).write_text(rules.model_dump_json())
    rows = rows.combine_chunks()
    starts = request_starts(rows, schema)
    lengths = np.diff(np.append(starts, rows.num_rows))
    at_us = (at_s * 1e6).astype(np.int64)
    offsets = pa.array(np.append(starts, rows.num_rows).astype(np.int32))
    key = (at_us << KEY_BITS) | (np.arange(starts.size) % (1 << KEY_BITS))
    ids = pa.array([f"r{k}" for k in key])
    columns = {
        TIME: pa.array(at_us).cast(TIME_TYPE),
        KEY: pa.array(key),
        ROW: pa.array(np.zeros(starts.size, np.int32)),
        REQUEST_ID: ids,
        PATH: pa.array(["-"] * starts.size),
        VERSION: pa.array(["-"] * starts.size),
        REASON: pa.nulls(starts.size, pa.string()),
        SCORES: pa.ListArray.from_arrays(offsets, pa.array(np.full(rows.num_rows, 0.5, np.float32))),
    }
    for name, type_ in stored_types(schema).items():
        column = rows.column(name).combine_chunks()
        shared = name in schema.context.names
        columns[name] = (
            column.take(pa.array(starts)) if shared else pa.ListArray.from_arrays(offsets, column)
        ).cast(type_)
    stored = pa.table(columns, pa.schema([*LOG_COLUMNS, *stored_types(schema).items()]))
    positive = np.flatnonzero(rows.column(schema.label.column).to_numpy() > 0.5)
    request = np.repeat(np.arange(starts.size), lengths)[positive]
    labels = pa.table(
        {
            "request_id": ids.take(pa.array(request)),
            "row": pa.array((positive - starts[request]).astype(np.int32)),
            "label": pa.array(np.ones(positive.size)),
            "time": pa.array(at_us[request] + CLICK_AFTER_US).cast(TIME_TYPE),
            "client": pa.array(["shop"] * positive.size),
        },
        LABEL_COLUMNS,
    )
    for kind, table, time in ((REQUESTS, stored, TIME), (FEEDBACK, labels, "time")):
        hours = pc.strftime(table.column(time), HOUR)
        for hour in pc.unique(hours).to_pylist():
            file = folder / kind / hour / f"{part}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.filter(pc.equal(hours, hour)), file)
