"""Reads a prediction log: the requests that a server answered, joined with labels that arrived later.

    FOLDER/log.json                                how labels are joined, see `LogRules`
    FOLDER/requests/2026-11-23T17/part-*.parquet   one row per request: its context once, candidates as lists
    FOLDER/feedback/2026-11-23T17/part-*.parquet   labels: request id, row of the request, label, time

`polyrec serve --prediction-log FOLDER` writes it (server/prediction_log/). Labels are joined when the log is
read, so that a label counts no matter when it arrived. Label files from other sources may be added below
`feedback/`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from polyrec.models.data.columns import TARGET, check_columns, column_kind
from polyrec.models.data.malformed import RowValidator
from polyrec.models.data.packed.reader import PackedReader, Packing
from polyrec.models.data.parquet import open_parquet, parquet_files
from polyrec.models.data.reader import OnMalformed, utc_time
from polyrec.models.data.requests import Requests
from polyrec.models.errors import DataError
from polyrec.models.files import Strict, read_json, validate_as
from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import Schema

RULES = "log.json"
POSITIVE = 0.5
"""Beyond which a label is positive; live quality takes labels alike."""
REQUESTS, FEEDBACK = "requests", "feedback"
HOUR = "%Y-%m-%dT%H"
"""Format of the name of an hour's folder, UTC."""
TIME, REQUEST_ID, SCORES = "log.time", "log.request_id", "log.scores"
KEY, ROW = "log.key", "log.row"
PATH, VERSION, REASON = "log.path", "log.version", "log.reason"
"""Columns beside the features; no feature's name has a dot."""
KEY_BITS = 12
"""Bits of a request's key below its time in microseconds."""
MAX_WINDOW_S = 1e8
CLOCKS_S = 60
"""How long before its answer a client's label still counts, as the clocks of a log's servers differ.

An earlier one is of another request: clients choose ids, and may repeat one that has labels.
"""
MAX_JOINED = 2**18
"""Pairs of a label and a request that are joined at once."""
EVER = datetime(1970, 1, 1, tzinfo=UTC)
TIME_TYPE = pa.timestamp("us", tz="UTC")
LOG_COLUMNS = pa.schema(
    [
        (TIME, TIME_TYPE),
        (KEY, pa.int64()),
        (ROW, pa.int32()),
        (REQUEST_ID, pa.string()),
        (PATH, pa.string()),
        (VERSION, pa.string()),
        (REASON, pa.string()),
        (SCORES, pa.list_(pa.float32())),
    ]
)
"""Columns of each stored row, before its features.

A ranking is one stored row, other requests are several, which are neighbors. time: when the answer was
written. key: grows with the time and differs between requests (and their groups). row: the stored row's
first row in the request. scores: of its rows.
"""
LABEL_COLUMNS = pa.schema(
    [
        ("request_id", pa.string()),
        ("row", pa.int32()),
        ("label", pa.float64()),
        ("time", TIME_TYPE),
        ("client", pa.string()),
    ]
)
"""Columns of a file of labels. row: of the request, from 0. time: null counts as within the window. client:
sender; null in files that the operator put there."""


class LogRules(Strict):
    """The rules of a log, in its log.json.

    for_schema: name of the schema. features: the stored features, with their types.
    window_s: seconds after an answer in which its labels count; a request is read once they have passed.
    unlabeled: whether a request without any label counts as all negatives or is left out.
    """

    format: Literal["polyrec-predictions-1"] = "polyrec-predictions-1"
    for_schema: str
    features: dict[str, str]
    window_s: Annotated[float, Field(gt=0, le=MAX_WINDOW_S)] = 3600.0
    unlabeled: Literal["negative", "leave_out"] = "negative"


def is_prediction_log(path: Path) -> bool:
    """Returns whether a folder is a prediction log."""
    return (path / RULES).is_file()


def load_rules(folder: Path) -> LogRules:
    """Reads the rules of a log. Raises DataError."""
    what = f"prediction log '{folder}'"
    try:
        raw = read_json(folder / RULES, what, DataError)
    except FileNotFoundError:
        raise DataError(
            f"no {what}: there is no {RULES}, which `polyrec serve --prediction-log` writes"
        ) from None
    return validate_as(LogRules, raw, what, DataError)


def stored_types(schema: Schema) -> dict[str, pa.DataType]:
    """Returns the types of the features in request files: one value for the context, lists for candidates."""
    types: dict[str, pa.DataType] = {}
    for role in (schema.context, schema.candidate):
        for name in role.names:
            one = TARGET[column_kind(schema, name)]
            types[name] = one if role is schema.context else pa.list_(one)
    return types


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
        labels, known = self._labels(stored)
        for name in self._keys:
            stored = stored.append_column(name, stored.column(KEY))
        lengths = pc.list_value_length(stored.column(SCORES)).to_numpy()
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
        # as the schema expects: labels of a log are 0 or 1, whereas those of the data may be ratings
        above = self._schema.label.positive_above
        values = pa.array(np.where(labels > POSITIVE, above + 1, above))
        stored = stored.append_column(label, pa.ListArray.from_arrays(offsets, values))
        if self.rules.unlabeled == "leave_out":
            stored = stored.filter(pa.array(known))
        return stored.select([name for name in columns if name in stored.column_names])

    def _labels(self, stored: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Returns the label of each row, float64 [rows], and whether a request has any label, bool [stored
        rows].

        Of two labels of a row, the later one counts. Requests with the same id all get its labels, except
        labels that a client sent before they were answered.
        """
        lengths: I64 = pc.list_value_length(stored.column(SCORES)).to_numpy().astype(np.int64)
        labels = np.zeros(int(lengths.sum()))
        known = np.zeros(lengths.size, bool)
        if not stored.num_rows:
            return labels, known
        # requests are runs of stored rows that begin with a request's row 0
        first = np.flatnonzero(stored.column(ROW).to_numpy() == 0)
        request_of_stored = np.cumsum(stored.column(ROW).to_numpy() == 0) - 1
        start = (np.cumsum(lengths) - lengths)[first]
        rows = np.diff(start, append=labels.size)
        ids = stored.column(REQUEST_ID).combine_chunks().take(pa.array(first)).dictionary_encode()
        time_of = stored.column(TIME).to_numpy()[first]

        given = self._feedback_of(_hour_of(time_of.min()), _hour_of(time_of.max()))
        found = pc.index_in(given.column("request_id"), ids.dictionary)
        # an hour has many files, so most of its labels are of requests in others
        given, id_ = given.filter(pc.is_valid(found)), found.drop_null().to_numpy()
        code = ids.indices.to_numpy()
        by_id = np.argsort(code, kind="stable")
        begin, end = (np.searchsorted(code[by_id], id_, side) for side in ("left", "right"))
        times, at = end - begin, given.column("time").to_numpy()
        rows_given, labels_given = (
            given.column("row").fill_null(-1).to_numpy(),
            given.column("label").to_numpy(),
        )
        by_client = pc.is_valid(given.column("client")).to_numpy()
        in_order = np.argsort(at, kind="stable")  # labels without a time last
        part = np.cumsum(times[in_order]) // MAX_JOINED
        # repeat each label for every request with its id; in parts, since all requests may have the same id
        for some in np.split(in_order, np.flatnonzero(np.diff(part)) + 1):
            label_at = np.repeat(some, times[some])
            nth = np.arange(label_at.size) - np.repeat(np.cumsum(times[some]) - times[some], times[some])
            request = by_id[begin[label_at] + nth]
            row, label = rows_given[label_at], labels_given[label_at]
            exists = (row >= 0) & (row < rows[request])
            self._rowless += exists.size - int(np.count_nonzero(exists))
            good = exists & np.isfinite(label)
            good &= ~(at[label_at] > time_of[request] + np.timedelta64(self._window))
            early = at[label_at] < time_of[request] - np.timedelta64(CLOCKS_S, "s")
            good &= ~(early & by_client[label_at])
            request, row, label = request[good], row[good], label[good]
            labels[start[request] + row] = label
            known[np.isin(request_of_stored, request)] = True
        return labels, known

    def _feedback_of(self, first: datetime, last: datetime) -> pa.Table:
        """Returns the labels that may belong to requests answered in the hours from first to last."""
        if self._feedback[0] != first or first != last:
            end = last + timedelta(hours=1, microseconds=-1)
            files = label_files_of(self._log, first, end, self._window)
            tables = [table for f in files for table in read_labels(f)]
            self._feedback = first, pa.concat_tables([LABEL_COLUMNS.empty_table(), *tables]).combine_chunks()
        return self._feedback[1]


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
    hour = _hour_named(folder)
    return hour is None or first <= hour <= until


@lru_cache(2**14)
def _hour_named(folder: str) -> datetime | None:
    """Returns the hour that a folder is named after, None if it has another name."""
    try:
        return datetime.strptime(folder, HOUR).replace(tzinfo=UTC)
    except ValueError:
        return None


def _hour(file: Path) -> datetime:
    hour = _hour_named(file.parent.name)
    if hour is None:
        raise DataError(f"'{file}' is not in the folder of an hour, such as 2026-11-23T17")
    return hour


def _hour_of(time_: np.datetime64) -> datetime:
    seconds = float(time_.astype("datetime64[us]").astype(np.int64)) / 1e6
    return _time(seconds).replace(minute=0, second=0, microsecond=0)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def stored_names(schema: Schema) -> dict[str, str]:
    """Returns the stored features with the names of their types, for `LogRules`."""
    return {name: str(type_) for name, type_ in stored_types(schema).items()}


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
