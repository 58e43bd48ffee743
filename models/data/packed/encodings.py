"""Chooses the encoding of each column of a Parquet file by measured bytes.

Dictionaries with run lengths suit repeated values, separate lengths suit rarely repeated strings, differences
suit ascending numbers, and split bytes suit floating point. The best one depends on the data, so each column
is written with every encoding that fits its type, and the smallest wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

COMPRESSION = "zstd"
DICTIONARY_BYTES = 16 << 20
MIN_GAIN = 0.05
"""Share of bytes that another encoding must save to replace a dictionary, which reads fastest."""


@dataclass(frozen=True, slots=True)
class Encodings:
    """Parquet encodings of a file's columns.

    dictionary: leaf columns with a dictionary. others: leaf column -> encoding.
    """

    dictionary: tuple[str, ...]
    others: dict[str, str]

    def options(self) -> dict[str, Any]:
        """Returns keyword arguments for pq.ParquetWriter."""
        return {
            "compression": COMPRESSION,
            "use_dictionary": list(self.dictionary),
            "column_encoding": self.others,
            "dictionary_pagesize_limit": DICTIONARY_BYTES,
        }


def choose_encodings(sample: pa.Table) -> Encodings:
    """Returns the smallest encodings of the columns of a sample: scalars, or lists of any depth."""
    dictionary: list[str] = []
    others: dict[str, str] = {}
    for name in sample.column_names:
        column = sample.select([name])
        leaf, size = _written(column, {"use_dictionary": True, "dictionary_pagesize_limit": DICTIONARY_BYTES})
        best, size_limit = None, size * (1 - MIN_GAIN)
        for encoding in _encodings_for(column.schema.field(name).type):
            _, size = _written(column, {"use_dictionary": False, "column_encoding": {leaf: encoding}})
            if size < size_limit:
                best, size_limit = encoding, size
        if best is None:
            dictionary.append(leaf)
        else:
            others[leaf] = best
    return Encodings(tuple(dictionary), others)


def _written(column: pa.Table, options: dict[str, Any]) -> tuple[str, int]:
    """Writes a column with `options`; returns the path of its only leaf and the compressed bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(column, sink, compression=COMPRESSION, **options)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    groups = [metadata.row_group(i).column(0) for i in range(metadata.num_row_groups)]
    return groups[0].path_in_schema, sum(g.total_compressed_size for g in groups)


def _encodings_for(type_: pa.DataType) -> tuple[str, ...]:
    while pt.is_list(type_):
        type_ = type_.value_type
    if pt.is_string(type_):
        return ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
    if pt.is_integer(type_):
        return ("DELTA_BINARY_PACKED",)
    return ("BYTE_STREAM_SPLIT",) if pt.is_floating(type_) else ()
