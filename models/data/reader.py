"""Reads a file or folder as a stream of Arrow batches in the types of the schema.

A pass holds only a few batches in memory, whatever the file size. Every pass over the same data yields the
same rows in the same order for any choice of columns: malformed rows are detected by the same columns each
time, and are either an error or skipped and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from polyrec.models.data.remote.path import DataPath, RemotePath, data_path
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema
from polyrec.models.text import python_command, python_literal

OnMalformed = Literal["fatal", "count"]


class DataReader(Protocol):
    """Rows of one data set, readable in any number of passes."""

    @property
    def path(self) -> DataPath:
        """The file or folder."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, in file order."""
        ...

    @property
    def rows_hint(self) -> int | None:
        """Number of rows, if known without reading them; for progress bars."""
        ...

    @property
    def malformed(self) -> int:
        """Malformed rows left out so far in the latest pass."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Messages for the user about what else the latest pass left out so far."""
        ...

    def batches(self, columns: Sequence[str], rows: int = 65536) -> Iterator[pa.RecordBatch]:
        """Yields these columns, at most `rows` rows at a time; no batch is empty.

        Strings are string, integers int64, dense features and the label float64, multi-valued features lists;
        missing values are nulls. Raises DataError.
        """
        ...

    def fingerprint(self) -> str:
        """Returns the sha256 of the data, or of the remote store's version identifiers; hex digits."""
        ...


class PeriodReader:
    """Rows of a reader with since <= time < until, where time is the column of the schema's split by time.

    since, until: None for no bound; a number if the column has numbers, else an ISO date or time, in UTC by
    default.
    Raises DataError if the schema has no split by time, a bound does not fit the column, or the period is
    empty.
    """

    def __init__(self, reader: DataReader, schema: Schema, since: str | None, until: str | None) -> None:
        if schema.split.rule != "time":
            raise DataError(
                f"a period needs a time, and schema '{schema.name}' has none: its split is by "
                f"{schema.split.rule}"
            )
        self.path, self.columns = reader.path, reader.columns
        self._reader = reader
        self._period = (f" since {since}" if since else "") + (f" before {until}" if until else "")
        self._column = schema.split.columns[0]
        type_ = _stored_type(reader.path, self._column)
        self._since, self._until = (_bound(text, self._column, type_) for text in (since, until))
        if self._since is not None and self._until is not None and self._since >= self._until:
            raise DataError(f"no time lies between {since} and {until}")

    @property
    def rows_hint(self) -> int | None:
        return self._reader.rows_hint

    @property
    def malformed(self) -> int:
        return self._reader.malformed

    @property
    def notes(self) -> Sequence[str]:
        return self._reader.notes

    def fingerprint(self) -> str:
        found = f"{self._reader.fingerprint()} {self._since} {self._until}"
        return hashlib.sha256(found.encode()).hexdigest()

    def batches(self, columns: Sequence[str], rows: int = 65536) -> Iterator[pa.RecordBatch]:
        any_found = False
        for data in self._reader.batches(list(dict.fromkeys([*columns, self._column])), rows):
            # keep a row without a time, so that the split reports it
            inside = pa.array(np.ones(data.num_rows, bool))
            for bound, holds in ((self._since, pc.greater_equal), (self._until, pc.less)):
                if bound is not None:
                    inside = pc.and_(inside, pc.fill_null(holds(data.column(self._column), bound), True))
            found = data.select(list(columns)).filter(inside)
            if found.num_rows:
                any_found = True
                yield found
        if not any_found:
            raise DataError(f"{self.path}: no row has a '{self._column}'{self._period}")


def _stored_type(path: DataPath, column: str) -> pa.DataType | None:
    """Returns a column's type in Parquet files, of a single value if they are packed; None if it is
    absent.
    """
    from polyrec.models.data.parquet import open_parquet, parquet_files

    try:
        with open_parquet(parquet_files(path)[0]) as parquet:
            type_ = parquet.schema_arrow.field(column).type
    except (DataError, KeyError):
        return None
    return type_.value_type if pt.is_list(type_) else type_


def _bound(text: str | None, column: str, type_: pa.DataType | None) -> int | float | None:
    """Converts a bound to the numbers that a reader returns for the column. Raises DataError."""
    if text is None:
        return None
    if type_ is not None and pt.is_temporal(type_):
        utc = utc_time(text).replace(tzinfo=None)
        if pt.is_date32(type_):
            return (utc.date() - date(1970, 1, 1)).days
        unit = type_.unit if pt.is_timestamp(type_) else "ms"
        ticks: int = pa.scalar(utc, pa.timestamp(unit)).value
        return ticks
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise DataError(f"column '{column}' holds numbers: '{text}' is not one") from None


def utc_time(text: str) -> datetime:
    """Parses an ISO date or time, in UTC unless it says otherwise. Raises DataError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise DataError(f"'{text}' is not a time like 2026-11-23 or 2026-11-23T18:00") from None
    return time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)


def open_data(
    path: str | Path,
    schema: Schema,
    on_malformed: OnMalformed = "fatal",
    since: str | None = None,
    until: str | None = None,
) -> DataReader:
    """Opens Parquet (file, folder or glob), plain or packed, a prediction log, or a Criteo TSV (or gzip).

    path: Parquet may also be a URL, see models/data/remote/path.py.
    since, until: only rows of this period, see PeriodReader; for a log, by the times of its answers.
    Request features are computed from these rows and read like columns.
    Raises DataError: no such file, an unknown format, a column that is missing or has the wrong type, an
    empty period.
    """
    from polyrec.models.data.prediction_log.log_format import is_prediction_log
    from polyrec.models.data.prediction_log.reader import PredictionLogReader

    found = data_path(path)
    reader: DataReader
    if isinstance(found, Path) and is_prediction_log(found):
        reader = PredictionLogReader(found, schema, on_malformed, since=since, until=until)
    else:
        reader = _open(found, schema, on_malformed)
        if since is not None or until is not None:
            reader = PeriodReader(reader, schema, since, until)
    if not schema.request:
        return reader
    from polyrec.models.data.request_columns import RequestReader

    return RequestReader(reader, schema)


def is_csv(path: DataPath) -> bool:
    """Returns whether a path is named like a CSV file, which cannot be read."""
    return str(path).lower().endswith((".csv", ".csv.gz"))


def csv_given(path: DataPath) -> DataError:
    """Returns the error for a CSV file or a folder of them, with a command that converts it to Parquet.

    Empty fields become missing values, and no others, since `NA` may be a country. Each file of a folder is
    converted to a file beside it.
    """
    code = "from pyarrow import csv, parquet; "
    code += 'o = csv.ConvertOptions(strings_can_be_null=True, null_values=[""]); '
    if isinstance(path, Path) and path.is_dir():
        what = f"no *.parquet file in '{path}'; of its CSV files make some"
        code += f"from pathlib import Path; found = Path({python_literal(str(path))}).rglob; "
        code += 'files = [f for end in ("*.csv", "*.csv.gz") for f in found(end) if f.is_file()]; '
        code += '[parquet.write_table(csv.read_csv(f, convert_options=o), f"{f}.parquet") for f in files]'
    else:
        what = f"'{path}' is not Parquet; of a CSV file make one"
        name, made = map(python_literal, (str(path), str(path).removesuffix(".gz")[:-4] + ".parquet"))
        code += f"parquet.write_table(csv.read_csv({name}, convert_options=o), {made})"
    return DataError(f"{what}: {python_command(code)}")


def _open(path: DataPath, schema: Schema, on_malformed: OnMalformed) -> DataReader:
    from polyrec.models.data.criteo import CriteoReader

    if is_glob(path):
        return _open_parquet(path, schema, on_malformed)
    if isinstance(path, RemotePath):
        if not path.exists():
            raise DataError(f"no data at '{path}'")
        return _open_parquet(path, schema, on_malformed)
    if not path.exists():
        raise DataError(f"no data file '{path}'")
    if path.is_dir():
        return _open_parquet(path, schema, on_malformed)
    try:
        with path.open("rb") as f:
            magic = f.read(4)
    except OSError as e:
        raise DataError(f"cannot read '{path}': {e.strerror}") from None
    if magic == b"PAR1":
        return _open_parquet(path, schema, on_malformed)
    if not magic:
        raise DataError(f"'{path}' is empty")
    if is_csv(path):
        raise csv_given(path)
    if path.suffix in (".tsv", ".txt", ".gz"):
        return CriteoReader(path, schema, on_malformed)
    raise DataError(f"'{path}' is neither Parquet nor a Criteo file (.tsv, .txt or .gz)")


def _open_parquet(path: DataPath, schema: Schema, on_malformed: OnMalformed) -> DataReader:
    from polyrec.models.data.packed.reader import PackedReader, is_packed
    from polyrec.models.data.parquet import ParquetReader, parquet_files

    first = parquet_files(path)[0]
    return (PackedReader if is_packed(first) else ParquetReader)(path, schema, on_malformed)


def is_glob(path: DataPath) -> bool:
    """Returns whether a path is a pattern for files, like `clicks/2026-11-*.parquet`."""
    if isinstance(path, RemotePath):
        return path.is_glob
    return not path.exists() and any(character in str(path) for character in "*?[")


def fingerprint(files: Sequence[DataPath], root: DataPath) -> str:
    """Returns the sha256 over names (below root) and contents of files. root: a file, a folder or a glob.

    For remote files, the store's version identifier replaces the contents.
    """
    digest = hashlib.sha256()
    while isinstance(root, Path) and is_glob(root):
        root = root.parent
    for file in files:
        if isinstance(file, RemotePath):
            digest.update(f"{file.name} {file.identity()}\0".encode())
            continue
        assert isinstance(root, Path)
        if file != root:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        try:
            with file.open("rb") as f:
                while block := f.read(1 << 20):
                    digest.update(block)
        except OSError as e:
            raise DataError(f"cannot read '{file}': {e.strerror}") from None
    return digest.hexdigest()
