"""Reads Parquet: one file, or all `*.parquet` files of a folder or glob, in order of name.

It reads batch by batch through a small buffer, so that memory does not grow with the file. A row is malformed
if its label is missing or a dense feature is infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import overload

import pyarrow as pa
import pyarrow.parquet as pq

from polyrec.models.data.columns import (
    check_alike,
    check_columns,
    check_type,
    column_kind,
    in_unit_of,
    normalize_column,
)
from polyrec.models.data.malformed import RowValidator
from polyrec.models.data.reader import OnMalformed, csv_given, fingerprint, is_csv, is_glob
from polyrec.models.data.remote.path import DataPath, RemotePath, is_visible
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema

BUFFER_BYTES = 1 << 20
DATA_ENDINGS = (".parquet", ".parq", ".pq", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".orc", ".avro")


class ParquetReader:
    """Rows of Parquet files (see polyrec.models.data.reader.DataReader)."""

    def __init__(self, path: DataPath, schema: Schema, on_malformed: OnMalformed = "fatal") -> None:
        self.path: DataPath = path
        self._schema = schema
        self._validator = RowValidator(schema, on_malformed)
        self._files = parquet_files(path)
        self._rows = 0
        self._first_types: dict[str, tuple[str, pa.DataType]] = {}
        for file in self._files:
            with open_parquet(file) as parquet:
                there = parquet.schema_arrow
                check_columns(str(file), schema.columns, there.names)
                for name in schema.columns:
                    kind, type_ = column_kind(schema, name), there.field(name).type
                    check_type(str(file), name, kind, type_)
                    # if all values are missing, there is nothing to compare
                    if kind in ("key", "time") and not pa.types.is_null(type_):
                        first, first_type = self._first_types.setdefault(name, (str(file), type_))
                        check_alike(str(file), name, type_, first, first_type)
                self._rows += parquet.metadata.num_rows
                if file == self._files[0]:
                    self.columns = tuple(there.names)

    @property
    def malformed(self) -> int:
        return self._validator.malformed

    @property
    def notes(self) -> Sequence[str]:
        return ()

    @property
    def rows_hint(self) -> int | None:
        return self._rows

    def fingerprint(self) -> str:
        return fingerprint(self._files, self.path)

    def batches(self, columns: Sequence[str], rows: int = 65536) -> Iterator[pa.RecordBatch]:
        self._validator.start_pass()
        read = list(dict.fromkeys([*columns, *self._validator.columns]))
        for file in self._files:
            with open_parquet(file) as parquet:
                check_columns(str(file), columns, parquet.schema_arrow.names)
                first = 0
                try:
                    for batch in parquet.iter_batches(rows, columns=read, use_threads=False):
                        yield from self._clean(file, first, batch, columns)
                        first += batch.num_rows
                except (OSError, pa.ArrowException) as e:
                    raise DataError(f"cannot read '{file}': {str(e).splitlines()[0]}") from None

    def _clean(
        self, file: DataPath, first: int, batch: pa.RecordBatch, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        names, found = batch.schema.names, []
        for name, values in zip(names, batch.columns, strict=True):
            if name in self._first_types:
                values = in_unit_of(values, self._first_types[name][1])
            found.append(normalize_column(str(file), name, column_kind(self._schema, name), values))
        data = pa.RecordBatch.from_arrays(found, names)
        good = self._validator.valid_rows(str(file), first, data)
        out = data.select(list(columns))
        if good is not None:
            out = out.filter(good)
        if out.num_rows:
            yield out


@overload
def parquet_files(path: Path) -> list[Path]: ...
@overload
def parquet_files(path: RemotePath) -> list[RemotePath]: ...
def parquet_files(path: DataPath) -> list[Path] | list[RemotePath]:
    """Returns a file itself, all `*.parquet` files of a folder, or those that match a glob, in order of name.

    Of a folder, names that begin with `_` or `.` are left out with all below them, as Spark and Arrow do:
    such files are unfinished (`_temporary`) or describe others. Raises DataError if there are none.
    """
    if isinstance(path, RemotePath):
        found = path.parquet_files()
        if not found:
            raise DataError(f"no *.parquet file at '{path}'")
        return found
    if is_glob(path):
        files = sorted(Path(name) for name in glob(str(path), recursive=True) if Path(name).is_file())
        if not files:
            raise DataError(f"no file matches '{path}'")
        return files
    files = sorted(_visible(path, "*.parquet")) if path.is_dir() else [path]
    if not files:
        if any(is_csv(file) and file.is_file() for file in path.rglob("*.csv*")):
            raise csv_given(path)
        raise DataError(f"no *.parquet file in '{path}'")
    return files


def _visible(folder: Path, pattern: str) -> Iterator[Path]:
    for file in folder.rglob(pattern):
        if is_visible(file.relative_to(folder).parts):
            yield file


def unread_files(path: DataPath) -> list[Path]:
    """Returns the files of a folder that look like data and that `parquet_files` leaves out, by name.

    A CSV file beside which the same is Parquet has been converted.
    """
    if not (isinstance(path, Path) and path.is_dir()):
        return []
    found = []
    for file in _visible(path, "*"):
        made = (file.with_name(f"{file.name}.parquet"), file.with_suffix(".parquet"))
        is_data = file.name.lower().endswith(DATA_ENDINGS) and file.suffix != ".parquet"
        if is_data and file.is_file() and not any(other.exists() for other in made):
            found.append(file)
    return sorted(found)


def open_parquet(file: DataPath) -> pq.ParquetFile:
    """Opens a file with a small read buffer; for a remote file, a row group's columns are read at once.

    Raises DataError if it is not Parquet.
    """
    try:
        if isinstance(file, RemotePath):
            return pq.ParquetFile(file.path, filesystem=file.arrow_system(), pre_buffer=True)
        return pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as e:
        if isinstance(e, pa.ArrowInvalid) and is_csv(file):
            raise csv_given(file) from None
        if isinstance(e, FileNotFoundError):
            raise DataError(f"no data file '{file}'") from None
        raise DataError(f"cannot read '{file}' as Parquet: {str(e).splitlines()[0]}") from None
