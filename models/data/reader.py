"""Reads a file or folder as a stream of Arrow batches in the types of the schema.

A pass holds only a few batches in memory, whatever the file size. Every pass over the same data gives the
same rows in the same order for any choice of columns: malformed rows are detected by the same columns each
time, and are an error or left out and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa

from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema

OnMalformed = Literal["fatal", "count"]


class DataReader(Protocol):
    """Rows of one data set, readable in any number of passes."""

    @property
    def path(self) -> Path:
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

    def batches(self, columns: Sequence[str], rows: int = 65536) -> Iterator[pa.RecordBatch]:
        """Yields these columns, at most `rows` rows at a time; no batch is empty.

        Strings are string, integers int64, dense features and the label float64, multi-valued
        features lists; missing values are nulls. Raises DataError.
        """
        ...

    def fingerprint(self) -> str:
        """sha256 of the bytes of the data, as hex digits."""
        ...


def open_data(path: str | Path, schema: Schema, on_malformed: OnMalformed = "fatal") -> DataReader:
    """Opens a Parquet file or a folder of them, plain or packed, a prediction log, or a Criteo TSV (or gzip).

    Features of the request are computed, and read like columns. Raises DataError: no such file, an unknown
    format, a column of the schema that is missing or of another type.
    """
    reader = _open(Path(path), schema, on_malformed)
    if not schema.request:
        return reader
    from polyrec.models.data.request_columns import RequestReader

    return RequestReader(reader, schema)


def _open(path: Path, schema: Schema, on_malformed: OnMalformed) -> DataReader:
    from polyrec.models.data.criteo import CriteoReader

    if not path.exists():
        raise DataError(f"no data file '{path}'")
    if path.is_dir():
        from polyrec.models.data.prediction_log import PredictionLogReader, is_prediction_log

        if is_prediction_log(path):
            return PredictionLogReader(path, schema, on_malformed)
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
    if path.suffix in (".tsv", ".txt", ".gz"):
        return CriteoReader(path, schema, on_malformed)
    raise DataError(f"'{path}' is neither Parquet nor a Criteo file (.tsv, .txt or .gz)")


def _open_parquet(path: Path, schema: Schema, on_malformed: OnMalformed) -> DataReader:
    from polyrec.models.data.packed.reader import PackedReader, is_packed
    from polyrec.models.data.parquet import ParquetReader, parquet_files

    first = parquet_files(path)[0]
    return (PackedReader if is_packed(first) else ParquetReader)(path, schema, on_malformed)


def fingerprint(files: Sequence[Path], root: Path) -> str:
    """sha256 over names (below root) and contents of files, streamed."""
    digest = hashlib.sha256()
    for file in files:
        if file != root:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        try:
            with file.open("rb") as f:
                while block := f.read(1 << 20):
                    digest.update(block)
        except OSError as e:
            raise DataError(f"cannot read '{file}': {e.strerror}") from None
    return digest.hexdigest()
