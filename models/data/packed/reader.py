"""Reads packed data: one stored row per request, shared columns once, the other columns as lists.

`polyrec pack` writes it (models/data/packed/packing.py). It can be read as requests, each with its context
once, or as plain rows, so that packed data work wherever plain data do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from pydantic import ValidationError

from polyrec.models.data.columns import check_columns, check_type, column_kind, normalize_column
from polyrec.models.data.malformed import RowValidator
from polyrec.models.data.parquet import open_parquet, parquet_files
from polyrec.models.data.reader import OnMalformed, fingerprint
from polyrec.models.data.remote.path import DataPath
from polyrec.models.data.requests import Requests, rebatch
from polyrec.models.errors import DataError
from polyrec.models.files import Strict
from polyrec.models.schema.schema import Schema

KEY = b"polyrec.packed"
PIECE_ROWS = 65536


class Packing(Strict):
    """Metadata of a packed file, as JSON in its Parquet schema under KEY.

    for_schema: name of the schema it was packed for. group, cluster_by: keys by which rows are contiguous.
    columns: all columns, in data order. shared: columns stored once per request.
    """

    format: Literal["polyrec-packed-1"] = "polyrec-packed-1"
    for_schema: str
    group: str
    cluster_by: str | None
    columns: tuple[str, ...]
    shared: tuple[str, ...]


def is_packed(file: DataPath) -> bool:
    """Returns whether a Parquet file was packed by any version of Polyrec. Raises DataError if it is not
    Parquet.
    """
    return _written(file) is not None


def packing_of(file: DataPath) -> Packing | None:
    """Returns the metadata of a packed file; None if it is plain. Raises DataError if it cannot be read."""
    written = _written(file)
    if written is None:
        return None
    try:
        return Packing.model_validate(json.loads(written))
    except (ValueError, ValidationError):
        raise DataError(
            f"'{file}' was packed by another version of Polyrec; pack the data again with this one"
        ) from None


def _written(file: DataPath) -> bytes | None:
    with open_parquet(file) as parquet:
        return (parquet.schema_arrow.metadata or {}).get(KEY)


class PackedReader:
    """Rows of packed Parquet files (see polyrec.models.data.reader.DataReader), and their requests."""

    def __init__(self, path: DataPath, schema: Schema, on_malformed: OnMalformed = "fatal") -> None:
        self.path: DataPath = path
        self._schema = schema
        self._validator = RowValidator(schema, on_malformed)
        self._files = parquet_files(path)
        self._rows = 0
        for file in self._files:
            packing = packing_of(file)
            if file == self._files[0] and packing is not None:
                self.packing = packing
            if packing is None or packing != self.packing:
                raise DataError(
                    f"'{file}' is not packed as '{self._files[0]}' is; keep them in folders apart"
                )
            self._rows += self._check(file)
        self.columns = self.packing.columns

    def _check(self, file: DataPath) -> int:
        """Checks columns and types; returns the number of rows."""
        with open_parquet(file) as parquet:
            there = parquet.schema_arrow
            check_columns(str(file), self.packing.columns, there.names)
            check_columns(str(file), self._schema.columns, self.packing.columns)
            for name in self.packing.columns:
                type_ = there.field(name).type
                if name not in self.packing.shared:
                    if not pt.is_list(type_):
                        raise DataError(f"'{file}' is damaged: column '{name}' is {type_}, not a list")
                    type_ = type_.value_type
                if name in self._schema.columns:
                    check_type(str(file), name, column_kind(self._schema, name), type_)
            per_row = (name for name in self.packing.columns if name not in self.packing.shared)
            # a column of single values has one leaf per row
            flat = next(name for name in per_row if not pt.is_list(there.field(name).type.value_type))
            return _leaf_count(parquet.metadata, flat)

    @property
    def rows_hint(self) -> int | None:
        return self._rows

    @property
    def malformed(self) -> int:
        return self._validator.malformed

    @property
    def notes(self) -> Sequence[str]:
        return ()

    @property
    def shares_context(self) -> bool:
        """Whether every context feature is stored once per request; always true for the schema it was
        packed for.
        """
        return set(self._schema.context.names) <= set(self.packing.shared)

    def fingerprint(self) -> str:
        return fingerprint(self._files, self.path)

    def batches(self, columns: Sequence[str], rows: int = PIECE_ROWS) -> Iterator[pa.RecordBatch]:
        pieces = (piece for part in self.requests(columns) for piece in part.pieces(PIECE_ROWS))
        return rebatch((piece.exploded(columns) for piece in pieces), rows)

    def requests(self, columns: Sequence[str]) -> Iterator[Requests]:
        """Yields requests with at least these columns, one row group at a time, with types and nulls as in
        `batches`.

        Malformed rows are left out of their request. Raises DataError.
        """
        self._validator.start_pass()
        shared = self.packing.shared
        read = list(dict.fromkeys([*columns, *self._validator.columns, self.packing.group]))
        if set(read) <= set(shared):
            read.append(next(name for name in self.packing.columns if name not in shared))
        for file in self._files:
            check_columns(str(file), columns, self.columns)
            first = 0
            with open_parquet(file) as parquet:
                for group in range(parquet.num_row_groups):
                    try:
                        stored = self._row_group(parquet, group, read)
                    except (OSError, pa.ArrowException) as e:
                        raise DataError(f"cannot read '{file}': {str(e).splitlines()[0]}") from None
                    for data in stored.combine_chunks().to_batches():
                        found = self._requests(str(file), data)
                        good = self._validator.valid_rows(
                            str(file), first, found.exploded(self._validator.columns)
                        )
                        first += found.rows
                        yield found if good is None else found.filter(good.to_numpy(zero_copy_only=False))

    def _row_group(self, parquet: pq.ParquetFile, group: int, columns: Sequence[str]) -> pa.Table:
        """Reads columns of a row group as they are stored."""
        return parquet.read_row_group(group, columns=list(columns), use_threads=False)

    def _requests(self, where: str, stored: pa.RecordBatch) -> Requests:
        shared: dict[str, pa.Array] = {}
        per_row: dict[str, pa.Array] = {}
        lengths = np.zeros(0, np.int64)
        for name, column in zip(stored.schema.names, stored.columns, strict=True):
            kind = column_kind(self._schema, name)
            if name in self.packing.shared:
                shared[name] = normalize_column(where, name, kind, column)
                continue
            found = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            if (per_row and not np.array_equal(found, lengths)) or found.min() < 1:
                raise DataError(f"'{where}' is damaged: the lists of column '{name}' have other lengths")
            lengths = found
            per_row[name] = normalize_column(where, name, kind, column.flatten())
        return Requests(
            pa.RecordBatch.from_arrays(list(shared.values()), list(shared)),
            pa.RecordBatch.from_arrays(list(per_row.values()), list(per_row)),
            lengths,
        )


def _leaf_count(metadata: pq.FileMetaData, column: str) -> int:
    """Returns the number of values of a column of lists, from the file's footer."""
    total = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for i in range(metadata.num_columns):
            if row_group.column(i).path_in_schema.split(".")[0] == column:
                total += row_group.column(i).num_values
    return total
