"""Reads the Criteo display advertising format: a label, 13 integers, 26 hexadecimal categories.

The file has forty tab-separated columns without a header, plain or gzip; an empty field is missing. Columns
are named `label`, `I1` ... `I13`, `C1` ... `C26`. The reader adds `row`, the line number from 1, because the
order of the file is its only record of time. Chunks of whole lines go through Arrow's parser; only a chunk
that it rejects is parsed line by line. The label and the integers are parsed in every pass, so each pass
leaves out the same malformed lines.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from polyrec.models.data.columns import check_columns, check_type, column_kind, normalize_column
from polyrec.models.data.reader import OnMalformed, fingerprint
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import Schema

INTEGERS = ("label", *(f"I{i}" for i in range(1, 14)))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
FIELDS = (*INTEGERS, *CATEGORIES)
CHUNK_BYTES = 4 << 20
GOOD_LINE = b"0" + b"\t" * (len(FIELDS) - 1) + b"\n"
PLAIN_INTEGER = "^-?[0-9]{1,18}$"
ODD_INTEGER = re.compile("-?[0-9]+|0[xX][0-9a-fA-F]{1,16}")


class CriteoReader:
    """Rows of a Criteo TSV (see polyrec.models.data.reader.DataReader)."""

    def __init__(self, path: Path, schema: Schema, on_malformed: OnMalformed = "fatal") -> None:
        self.path = path
        self.columns = ("row", *FIELDS)
        self.malformed = 0
        self._schema = schema
        self._on_malformed = on_malformed
        check_columns(f"'{path}' read as a Criteo TSV", schema.columns, self.columns)
        for name in schema.columns:
            type_ = pa.string() if name in CATEGORIES else pa.int64()
            check_type(str(path), name, column_kind(schema, name), type_)

    @property
    def rows_hint(self) -> int | None:
        """Unknown, because lines differ in length."""
        return None

    @property
    def notes(self) -> Sequence[str]:
        return ()

    def fingerprint(self) -> str:
        return fingerprint([self.path], self.path)

    def batches(self, columns: Sequence[str], rows: int = 65536) -> Iterator[pa.RecordBatch]:
        check_columns(f"'{self.path}'", columns, self.columns)
        self.malformed = 0
        first = 1
        for chunk in self._chunks():
            table, numbers, lines = self._parse(chunk, first, columns)
            first += lines
            arrays = []
            for name in columns:
                values = pa.array(numbers) if name == "row" else table.column(name)
                arrays.append(normalize_column(str(self.path), name, column_kind(self._schema, name), values))
            out = pa.RecordBatch.from_arrays(arrays, list(columns))
            for start in range(0, out.num_rows, rows):
                yield out.slice(start, rows)

    def _chunks(self) -> Iterator[bytes]:
        """Yields whole lines, about CHUNK_BYTES at a time."""
        rest, lines = b"", 0
        try:
            with self._open() as f:
                while block := f.read(CHUNK_BYTES):
                    head, newline, tail = block.rpartition(b"\n")
                    if newline:
                        yield rest + head + newline
                        lines += head.count(b"\n") + 1
                        rest = tail
                    elif len(rest) < CHUNK_BYTES:
                        rest += block
                    else:
                        raise DataError(
                            f"'{self.path}': line {lines + 1} is longer than {CHUNK_BYTES} bytes; "
                            "this is not a Criteo file"
                        )
        except (OSError, EOFError, zlib.error) as e:
            raise DataError(f"cannot read '{self.path}': {e}") from None
        if rest:
            yield rest + b"\n"

    def _open(self) -> IO[bytes]:
        with self.path.open("rb") as f:
            zipped = f.read(2) == b"\x1f\x8b"
        return cast("IO[bytes]", gzip.open(self.path, "rb")) if zipped else self.path.open("rb")

    def _parse(self, chunk: bytes, first: int, columns: Sequence[str]) -> tuple[pa.Table, I64, int]:
        """Returns the valid rows of a chunk, their line numbers, and the number of lines of the chunk."""
        if chunk.isascii():
            try:
                table = _table(chunk, columns)
            except pa.ArrowInvalid:
                pass
            else:
                if _is_label(table.column("label")).all():
                    numbers = np.arange(first, first + table.num_rows)
                    return table, numbers, table.num_rows
        return self._parse_by_line(chunk, first, columns)

    def _parse_by_line(self, chunk: bytes, first: int, columns: Sequence[str]) -> tuple[pa.Table, I64, int]:
        lines = chunk.split(b"\n")[:-1]
        malformed = _malformed_lines(lines)
        if malformed and self._on_malformed == "fatal":
            line = min(malformed)
            raise DataError(
                f"'{self.path}': line {first + line}: {malformed[line]}; "
                "correct the line, or count malformed lines instead of stopping at them"
            )
        self.malformed += len(malformed)
        kept = [line for line in range(len(lines)) if line not in malformed]
        good = b"".join(lines[line] + b"\n" for line in kept)
        table = _table(good, columns) if kept else _table(GOOD_LINE, columns).slice(1)
        return table, first + np.array(kept, np.int64), len(lines)


def _table(chunk: bytes, columns: Sequence[str]) -> pa.Table:
    """Parses whole lines. Raises pa.ArrowInvalid at the first malformed line."""
    return csv.read_csv(
        pa.BufferReader(chunk),
        read_options=csv.ReadOptions(column_names=list(FIELDS), use_threads=False, block_size=len(chunk) + 1),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types={name: pa.int64() if name in INTEGERS else pa.string() for name in FIELDS},
            include_columns=[name for name in FIELDS if name in INTEGERS or name in columns],
            null_values=[""],
            strings_can_be_null=True,
            check_utf8=False,
        ),
    )


def _is_label(values: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    valid = pc.is_in(values, value_set=pa.array([0, 1], pa.int64()))
    return cast("np.ndarray[tuple[int], np.dtype[np.bool_]]", valid.to_numpy())


def _malformed_lines(lines: Sequence[bytes]) -> dict[int, str]:
    """Describes the malformed lines of a chunk that Arrow's parser rejected: index -> problem."""
    malformed: dict[int, str] = {}
    numbers: list[list[str]] = []
    rows: list[int] = []
    for i, raw in enumerate(lines):
        line = raw.removesuffix(b"\r")
        fields = line.split(b"\t")
        if len(fields) != len(FIELDS):
            malformed[i] = f"{len(fields)} columns instead of {len(FIELDS)}"
        elif b"\r" in line:
            malformed[i] = "a carriage return inside the line"
        elif not line.isascii():
            malformed[i] = "a character outside ASCII"
        else:
            rows.append(i)
            numbers.append([field.decode() for field in fields[: len(INTEGERS)]])
    for j, name in reversed(list(enumerate(INTEGERS))):
        values = pa.array([fields[j] for fields in numbers], pa.string())
        plain = pc.or_(pc.equal(values, ""), pc.match_substring_regex(values, PLAIN_INTEGER))
        for k in np.flatnonzero(~plain.to_numpy(zero_copy_only=False)):
            if _integer(numbers[k][j]) is None:
                malformed[rows[k]] = f"{name} is {numbers[k][j][:40]!r}, not an integer"
    for i, (label, *_) in zip(rows, numbers, strict=True):
        if i not in malformed and _integer(label) not in {0, 1}:
            malformed[i] = f"the label is {label[:40]!r}, not 0 or 1"
    return malformed


def _integer(text: str) -> int | None:
    """Parses what Arrow's parser accepts as a 64-bit integer, including surrounding spaces and 0x."""
    text = text.strip(" ")
    if ODD_INTEGER.fullmatch(text) is None:
        return None
    value = int(text, 16 if "x" in text.lower() else 10)
    return value if -(2**63) <= value < 2**63 or "x" in text.lower() else None
