"""Writes requests to files with one row per request, in row groups of bounded size.

The first row group determines how each column is encoded (models/data/packed/encodings.py).
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polyrec.models.data.packed.encodings import choose_encodings
from polyrec.models.data.packed.reader import KEY, Packing
from polyrec.models.data.requests import Requests

ROW_GROUP_ROWS = 1 << 18
ROW_GROUP_BYTES = 64 << 20
FILE_ROWS = 1 << 24


class PackedWriter:
    """Writes files to a folder; leaving its `with` block writes the last row group.

    stored: rows written so far. narrow: columns to write in single precision, which must represent them
    exactly.
    """

    def __init__(self, folder: Path, packing: Packing, narrow: frozenset[str]) -> None:
        self.stored = 0
        self._folder = folder
        self._packing = packing
        self._narrow = narrow
        self._buffered: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._file_rows = self._files = 0
        self._file: pq.ParquetWriter | None = None

    def add(self, requests: Requests) -> None:
        """Adds the next requests, with all columns of the packing."""
        stored = self._stored_form(requests)
        self._buffered.append(stored)
        self._rows += requests.rows
        self._bytes += stored.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _stored_form(self, requests: Requests) -> pa.RecordBatch:
        """Converts requests to one row each."""
        offsets = pa.array(np.concatenate(([0], np.cumsum(requests.lengths))).astype(np.int32))
        arrays = []
        for name in self._packing.columns:
            shared = name in self._packing.shared
            column = (requests.shared if shared else requests.per_row).column(name)
            if name in self._narrow:
                column = pc.cast(column, pa.float32())
            arrays.append(column if shared else pa.ListArray.from_arrays(offsets, column))
        metadata = {KEY: self._packing.model_dump_json().encode()}
        fields = [pa.field(n, a.type) for n, a in zip(self._packing.columns, arrays, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata))

    def _flush(self) -> None:
        if not self._buffered:
            return
        table = pa.Table.from_batches(self._buffered).combine_chunks()
        if self._file is None:
            path = self._folder / f"part-{self._files:05}.parquet"
            options = choose_encodings(table).options()
            self._file = pq.ParquetWriter(path, table.schema, **options)
            self._files += 1
        self._file.write_table(table, row_group_size=table.num_rows)
        self.stored += table.num_rows
        self._file_rows += self._rows
        self._buffered, self._rows, self._bytes = [], 0, 0
        if self._file_rows >= FILE_ROWS:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._file_rows = None, 0

    def __enter__(self) -> PackedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._close()
