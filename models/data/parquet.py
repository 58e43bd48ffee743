"""Parquet in: one file, or all `*.parquet` files of a folder in the order of their names.

Read batch by batch through a small buffer, so that memory does not grow with the file. A row is
malformed if its label is missing or a dense feature is infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.data.columns import check_columns, check_type, kind_of, normalise
from models.data.reader import OnMalformed, fingerprint
from models.errors import DataError
from models.schema import Schema

BUFFER_BYTES = 1 << 20
INFINITE = (float("inf"), float("-inf"))


class ParquetReader:
    """Rows of Parquet files (see models.data.reader.Reader)."""

    def __init__(self, path: Path, schema: Schema, on_malformed: OnMalformed = "fatal") -> None:
        self.path = path
        self.malformed = 0
        self._schema = schema
        self._on_malformed = on_malformed
        self._files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        if not self._files:
            raise DataError(f"no *.parquet file in '{path}'")
        self._rows = 0
        for file in self._files:
            with _opened(file) as parquet:
                there = parquet.schema_arrow
                check_columns(str(file), schema.columns, there.names)
                for name in schema.columns:
                    check_type(str(file), name, kind_of(schema, name), there.field(name).type)
                self._rows += parquet.metadata.num_rows
                if file == self._files[0]:
                    self.columns = tuple(there.names)
        self._judged = tuple(dict.fromkeys([schema.label.column, *(d.name for d in schema.dense)]))

    @property
    def rows_hint(self) -> int | None:
        return self._rows

    def fingerprint(self) -> str:
        return fingerprint(self._files, self.path)

    def batches(self, columns: Sequence[str], rows: int = 65536) -> Iterator[pa.RecordBatch]:
        self.malformed = 0
        read = list(dict.fromkeys([*columns, *self._judged]))
        for file in self._files:
            with _opened(file) as parquet:
                check_columns(str(file), columns, parquet.schema_arrow.names)
                first = 0
                try:
                    for batch in parquet.iter_batches(rows, columns=read, use_threads=False):
                        yield from self._clean(file, first, batch, columns, read)
                        first += batch.num_rows
                except (OSError, pa.ArrowException) as e:
                    raise DataError(f"cannot read '{file}': {str(e).splitlines()[0]}") from None

    def _clean(
        self,
        file: Path,
        first: int,
        batch: pa.RecordBatch,
        columns: Sequence[str],
        read: Sequence[str],
    ) -> Iterator[pa.RecordBatch]:
        arrays = {
            name: normalise(str(file), name, kind_of(self._schema, name), batch.column(name)) for name in read
        }
        good = pc.is_valid(arrays[self._schema.label.column])
        for name in self._judged:
            good = pc.and_(good, pc.fill_null(pc.is_finite(arrays[name]), True))
        out = pa.RecordBatch.from_arrays([arrays[name] for name in columns], list(columns))
        bad = batch.num_rows - (pc.sum(good).as_py() or 0)
        if bad:
            if self._on_malformed == "fatal":
                row = pc.index(good, False).as_py()
                label = self._schema.label.column
                missing = arrays[label][row].as_py() is None
                infinite = (n for n in self._judged if arrays[n][row].as_py() in INFINITE)
                name = label if missing else next(infinite)
                raise DataError(
                    f"{file}: row {first + row}: '{name}' is {batch.column(name)[row].as_py()}; "
                    "mend the row, or count malformed rows instead of stopping at them"
                )
            self.malformed += bad
            out = out.filter(good)
        if out.num_rows:
            yield out


def _opened(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as e:
        raise DataError(f"cannot read '{file}' as Parquet: {str(e).splitlines()[0]}") from None
