"""Finds and reads the labels of a prediction log, and joins them with its requests.

Labels are joined when the log is read, so that a label counts no matter when it arrived. Label files from
other sources may be added below `feedback/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from polyrec.models.data.columns import check_columns
from polyrec.models.data.parquet import open_parquet
from polyrec.models.data.prediction_log.log_format import (
    FEEDBACK,
    LABEL_COLUMNS,
    REQUEST_ID,
    ROW,
    SCORES,
    TIME,
    TIME_TYPE,
    hour_named,
)
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import F64, I64

POSITIVE = 0.5
"""Beyond which a label is positive; live quality takes labels alike."""
CLOCKS_S = 60
"""How long before its answer a client's label still counts, as the clocks of a log's servers differ.

An earlier one is of another request: clients choose ids, and may repeat one that has labels.
"""
MAX_JOINED = 2**18
"""Pairs of a label and a request that are joined at once."""


def label_files_of(folder: Path, first: datetime, last: datetime, window: timedelta) -> list[Path]:
    """Returns a log's label files that may have labels of requests answered from first to last, sorted."""
    earliest = (first - timedelta(seconds=CLOCKS_S)).replace(minute=0, second=0, microsecond=0)
    top, until = folder / FEEDBACK, last + window
    # lists no folder of another hour: a log of a month has hundreds, and is read hour by hour
    parts = [part for part in top.iterdir() if _in(part.name, earliest, until)] if top.is_dir() else []
    files = [file for part in parts for file in ([part] if part.is_file() else part.rglob("*.parquet"))]
    return sorted(f for f in files if f.suffix == ".parquet" and _in(f.parent.name, earliest, until))


def read_labels(file: Path, request_ids: pa.Array | None = None) -> Iterator[pa.Table]:
    """Yields the labels of a file, in parts with LABEL_COLUMNS. request_ids: only labels of these requests.

    Raises DataError.
    """
    # imported here: it imports pandas if installed, a tenth of a server's imports, which may have no log
    import pyarrow.dataset as ds

    with open_parquet(file) as parquet:
        check_columns(str(file), ["request_id", "row", "label"], parquet.schema_arrow.names)
    wanted = None if request_ids is None else ds.field("request_id").isin(request_ids)
    try:
        for batch in ds.dataset(file).to_batches(filter=wanted):
            table = pa.Table.from_batches([batch])
            for column in LABEL_COLUMNS:
                if column.name not in table.column_names:
                    table = table.append_column(column, pa.nulls(table.num_rows, column.type))
            place, at = table.column_names.index("time"), table.column("time")
            if pa.types.is_integer(at.type):
                # a cast would take them for microseconds, whatever they are
                raise DataError(f"'{file}': column 'time' has {at.type}; it must have timestamps")
            # pandas makes nanoseconds, and those of a time that was a float are no whole microseconds
            whole = pc.CastOptions(TIME_TYPE, allow_time_truncate=True)
            table = table.set_column(place, "time", pc.cast(at, options=whole))
            yield table.select(LABEL_COLUMNS.names).cast(LABEL_COLUMNS)
    except (OSError, pa.ArrowException) as e:
        raise DataError(f"cannot read '{file}': {str(e).splitlines()[0]}") from None


def _in(folder: str, first: datetime, until: datetime) -> bool:
    """Returns whether the labels in an hour's folder may be needed; those in any other folder always are."""
    hour = hour_named(folder)
    return hour is None or first <= hour <= until


class StoredRequests(NamedTuple):
    """The requests of some stored rows of a log.

    of_stored: int64 [stored rows], the request of each; -1 before the first whole one.
    first_row, rows: int64 [requests], its first row among the rows of all requests, and their number.
    answered: datetime64 [requests], when it was answered.
    ids: string [distinct ids]. id_code: int64 [requests], the position of its id among them.
    """

    of_stored: I64
    first_row: I64
    rows: I64
    answered: NDArray[np.datetime64]
    ids: pa.Array
    id_code: I64

    @classmethod
    def of(cls, stored: pa.Table, lengths: I64) -> StoredRequests:
        """Finds the requests of stored rows, of which there is at least one. lengths: rows of each."""
        # requests are runs of stored rows that begin with a request's row 0
        begins = stored.column(ROW).to_numpy() == 0
        first_stored = np.flatnonzero(begins)
        first_row = (np.cumsum(lengths) - lengths)[first_stored]
        rows = np.diff(first_row, append=lengths.sum())
        answered = stored.column(TIME).to_numpy()[first_stored]
        ids = stored.column(REQUEST_ID).combine_chunks().take(pa.array(first_stored)).dictionary_encode()
        return cls(np.cumsum(begins) - 1, first_row, rows, answered, ids.dictionary, ids.indices.to_numpy())


class JoinedLabels(NamedTuple):
    """Labels of the rows of requests.

    labels: float64 [rows], 0 without one.
    known: bool [stored rows], whether their request has any label.
    rowless: number of labels of rows that their request lacks.
    """

    labels: F64
    known: NDArray[np.bool_]
    rowless: int


def join_labels(stored: pa.Table, given: pa.Table, window: timedelta) -> JoinedLabels:
    """Joins stored rows with the labels that may belong to them.

    Of two labels of a row, the later one counts. Requests with the same id all get its labels, except labels
    that came after the window, or that a client sent before they were answered.

    stored: whole requests, with LOG_COLUMNS. given: with LABEL_COLUMNS.
    """
    lengths: I64 = pc.list_value_length(stored.column(SCORES)).to_numpy().astype(np.int64)
    labels = np.zeros(int(lengths.sum()))
    if not stored.num_rows:
        return JoinedLabels(labels, np.zeros(0, bool), 0)
    requests = StoredRequests.of(stored, lengths)
    has_label = np.zeros(requests.rows.size, bool)
    found = pc.index_in(given.column("request_id"), requests.ids)
    # an hour has many files, so most of its labels are of requests in others
    given, code = given.filter(pc.is_valid(found)), found.drop_null().to_numpy()
    at = given.column("time").to_numpy()
    row_given, label_given = given.column("row").fill_null(-1).to_numpy(), given.column("label").to_numpy()
    by_client = pc.is_valid(given.column("client")).to_numpy()
    rowless = 0
    for label_at, request in _pairs(code, at, requests.id_code):
        row, label, answered = row_given[label_at], label_given[label_at], requests.answered[request]
        exists = (row >= 0) & (row < requests.rows[request])
        rowless += exists.size - int(np.count_nonzero(exists))
        late = at[label_at] > answered + np.timedelta64(window)
        early = at[label_at] < answered - np.timedelta64(CLOCKS_S, "s")
        good = exists & np.isfinite(label) & ~late & ~(early & by_client[label_at])
        labels[requests.first_row[request[good]] + row[good]] = label[good]
        has_label[request[good]] = True
    return JoinedLabels(labels, np.append(has_label, False)[requests.of_stored], rowless)


def _pairs(code: I64, at: NDArray[np.datetime64], id_code: I64) -> Iterator[tuple[I64, I64]]:
    """Yields (label, request) for all pairs with the same id, by the time of the label, in parts.

    In parts, since all requests may have the same id. code, id_code: the id of each label, of each request.
    """
    by_id = np.argsort(id_code, kind="stable")
    begin, end = (np.searchsorted(id_code[by_id], code, side) for side in ("left", "right"))
    requests = end - begin
    in_order = np.argsort(at, kind="stable")  # labels without a time last
    part = np.cumsum(requests[in_order]) // MAX_JOINED
    for some in np.split(in_order, np.flatnonzero(np.diff(part)) + 1):
        count = requests[some]
        label_at = np.repeat(some, count)
        nth = np.arange(label_at.size) - np.repeat(np.cumsum(count) - count, count)
        yield label_at, by_id[begin[label_at] + nth]
