"""Data in: a file or a folder becomes a stream of Arrow batches in the schema's own types.

A pass never holds more than a few batches, however large the file. Every pass over the same data
gives the same rows in the same order, whichever columns are asked for: a malformed row is judged by
the same columns each time, and is fatal or counted and left out, as asked.
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


class Reader(Protocol):
    """Rows of one data set, as often as wanted."""

    @property
    def path(self) -> Path:
        """The file or folder."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column there is, in the file's order."""
        ...

    @property
    def rows_hint(self) -> int | None:
        """How many rows there are, if that is known without reading them; for progress bars."""
        ...

    @property
    def malformed(self) -> int:
        """Malformed rows that the latest pass has left out so far."""
        ...

    def batches(self, columns: Sequence[str], rows: int = 65536) -> Iterator[pa.RecordBatch]:
        """The columns asked for, at most `rows` rows at a time; no batch is empty.

        Strings are string, integers int64, dense features and the label float64, multi-valued
        features lists; missing values are nulls. Raises DataError.
        """
        ...

    def fingerprint(self) -> str:
        """sha256 of the bytes of the data, as hex digits."""
        ...


def open_data(path: str | Path, schema: Schema, on_malformed: OnMalformed = "fatal") -> Reader:
    """Opens a Parquet file or a folder of them, plain or packed, or a Criteo TSV (plain or gzip).

    Raises DataError: nothing there, neither format, a column of the schema missing or of a type that
    cannot hold what the schema says.
    """
    from polyrec.models.data.criteo import CriteoReader

    path = Path(path)
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
    if path.suffix in (".tsv", ".txt", ".gz"):
        return CriteoReader(path, schema, on_malformed)
    raise DataError(f"'{path}' is neither Parquet nor a Criteo file (.tsv, .txt or .gz)")


def _open_parquet(path: Path, schema: Schema, on_malformed: OnMalformed) -> Reader:
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
