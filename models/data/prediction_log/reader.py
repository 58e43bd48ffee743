"""Reads a prediction log as data: the requests that a server answered, joined with their labels."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polyrec.models.data.columns import check_columns
from polyrec.models.data.malformed import RowValidator
from polyrec.models.data.packed.reader import PackedReader, Packing
from polyrec.models.data.parquet import open_parquet, parquet_files
from polyrec.models.data.prediction_log.labels import POSITIVE, join_labels, label_files_of, read_labels
from polyrec.models.data.prediction_log.log_format import (
    KEY,
    KEY_BITS,
    LABEL_COLUMNS,
    LOG_COLUMNS,
    REQUESTS,
    RULES,
    SCORES,
    TIME,
    TIME_TYPE,
    hour_named,
    load_rules,
    stored_types,
)
from polyrec.models.data.reader import OnMalformed, utc_time
from polyrec.models.data.requests import Requests
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema

EVER = datetime(1970, 1, 1, tzinfo=UTC)


class PredictionLogReader(PackedReader):
    """Rows of a log's requests, joined with their labels (see polyrec.models.data.reader.DataReader).

    The columns of the group and of the split contain `log.key` if they are not features.
    now_s: Unix time, default now; requests answered less than the log's window before it are left out.
    since, until: only requests answered at since <= time < until, in the format of `utc_time`. Raises
    DataError.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        on_malformed: OnMalformed = "fatal",
        now_s: float | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> None:
        self.path = self._log = path
        self.rules = load_rules(path)
        if self.rules.for_schema != schema.name:
            raise DataError(f"'{path}' is a log of schema '{self.rules.for_schema}', not of '{schema.name}'")
        self._schema = schema
        self._validator = RowValidator(schema, on_malformed)
        self._until = _time((time.time() if now_s is None else now_s) - self.rules.window_s)
        self._window = timedelta(seconds=self.rules.window_s)
        self._period = since, until
        self._since = EVER if since is None else utc_time(since)
        if until is not None:
            self._until = min(self._until, utc_time(until) - timedelta(microseconds=1))
            if since is not None and self._since >= utc_time(until):
                raise DataError(f"no time lies between {since} and {until}")
        first_hour = self._since.replace(minute=0, second=0, microsecond=0)
        self._files: list[Path] = []
        self._feedback: tuple[datetime | None, pa.Table] = None, LABEL_COLUMNS.empty_table()
        types = stored_types(schema)
        keys = [name for name in (schema.group, *_time_columns(schema)) if name and name not in types]
        self._keys = tuple(dict.fromkeys(keys))
        self.packing = Packing(
            for_schema=schema.name,
            group=schema.group or KEY,
            cluster_by=None,
            columns=(*types, *self._keys, schema.label.column),
            shared=(*schema.context.names, *self._keys, *(() if schema.group else (KEY,))),
        )
        self._rows = self._rowless = 0
        for file in parquet_files(path / REQUESTS):
            if not first_hour <= _hour(file) <= self._until:
                continue
            with open_parquet(file) as parquet:
                check_columns(str(file), [*LOG_COLUMNS.names, *types], parquet.schema_arrow.names)
                # skip files later than the period, so that its fingerprint does not change
                if _earliest(parquet.metadata) <= self._until:
                    self._files.append(file)
                    self._rows += _scores(parquet.metadata)
        if not self._files:
            raise DataError(
                f"'{path}' has no request"
                + (f" since {since}" if since is not None else "")
                + (f" before {until}" if until is not None else "")
                + f" that is older than the {self.rules.window_s:g} s in which labels may come: wait, or "
                f"lower window_s in '{self._log / RULES}'"
            )
        self.columns = self.packing.columns

    @property
    def notes(self) -> Sequence[str]:
        said = f"labels of rows that their request lacks: {self._rowless:,} (rows count from 0 in its order)"
        return (said,) if self._rowless else ()

    def requests(self, columns: Sequence[str]) -> Iterator[Requests]:
        self._rowless = 0
        yield from super().requests(columns)

    def fingerprint(self) -> str:
        whole = super().fingerprint()
        return (
            whole
            if self._period == (None, None)
            else hashlib.sha256(f"{whole} {self._period}".encode()).hexdigest()
        )

    def time_of(self, value: float) -> datetime | None:
        """Returns the time of a value in the split's column; None if that column is a feature."""
        if self._schema.split.columns[0] not in self._keys:
            return None
        return _time((int(value) >> KEY_BITS) / 1e6)

    def _row_group(self, parquet: pq.ParquetFile, group: int, columns: Sequence[str]) -> pa.Table:
        label = self._schema.label.column
        names = [name for name in columns if name not in (label, KEY, *self._keys)]
        stored = parquet.read_row_group(group, [*LOG_COLUMNS.names, *names], use_threads=False)
        at, since, until = stored.column(TIME), self._since, self._until
        inside = pc.and_(
            pc.greater_equal(at, pa.scalar(since, TIME_TYPE)), pc.less_equal(at, pa.scalar(until, TIME_TYPE))
        )
        stored = stored.filter(inside)
        joined = join_labels(stored, self._feedback_of(stored), self._window)
        self._rowless += joined.rowless
        for name in self._keys:
            stored = stored.append_column(name, stored.column(KEY))
        lengths = pc.list_value_length(stored.column(SCORES)).to_numpy()
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
        # as the schema expects: labels of a log are 0 or 1, whereas those of the data may be ratings
        above = self._schema.label.positive_above
        values = pa.array(np.where(joined.labels > POSITIVE, above + 1, above))
        stored = stored.append_column(label, pa.ListArray.from_arrays(offsets, values))
        if self.rules.unlabeled == "leave_out":
            stored = stored.filter(pa.array(joined.known))
        return stored.select([name for name in columns if name in stored.column_names])

    def _feedback_of(self, stored: pa.Table) -> pa.Table:
        """Returns the labels that may belong to stored rows, with LABEL_COLUMNS."""
        if not stored.num_rows:
            return self._feedback[1]
        answered = stored.column(TIME).to_numpy()
        first, last = _hour_of(answered.min()), _hour_of(answered.max())
        if self._feedback[0] != first or first != last:
            end = last + timedelta(hours=1, microseconds=-1)
            files = label_files_of(self._log, first, end, self._window)
            tables = [table for f in files for table in read_labels(f)]
            self._feedback = first, pa.concat_tables([LABEL_COLUMNS.empty_table(), *tables]).combine_chunks()
        return self._feedback[1]


def _hour(file: Path) -> datetime:
    hour = hour_named(file.parent.name)
    if hour is None:
        raise DataError(f"'{file}' is not in the folder of an hour, such as 2026-11-23T17")
    return hour


def _hour_of(time_: np.datetime64) -> datetime:
    seconds = float(time_.astype("datetime64[us]").astype(np.int64)) / 1e6
    return _time(seconds).replace(minute=0, second=0, microsecond=0)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _time_columns(schema: Schema) -> Iterator[str]:
    """Yields the columns of the split for which a log only has the time."""
    if schema.split.rule == "column":
        raise DataError(f"schema '{schema.name}' splits by a column of the data, which a log does not have")
    yield from schema.split.columns


def _earliest(metadata: pq.FileMetaData) -> datetime:
    """Returns the earliest time in a file, from its footer; EVER if it is not recorded."""
    found = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(metadata.schema.names.index(TIME)).statistics
        if statistics is None or not statistics.has_min_max:
            return EVER
        found.append(statistics.min)
    return min(found, default=EVER)


def _scores(metadata: pq.FileMetaData) -> int:
    """Returns the number of rows of all requests of a file, from its footer."""
    total = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for i in range(metadata.num_columns):
            if row_group.column(i).path_in_schema.startswith(SCORES):
                total += row_group.column(i).num_values
    return total
