"""Reads an access log: which values requests looked up, without labels.

There are two formats:

    Parquet      a file or folder with a row per request or candidate and a column per categorical feature, of
                 values or lists of values. Columns that are not features are ignored.
    JSON lines   (.jsonl, .json, .ndjson) on each line the body of a request to /v1/predict, /v1/rank or the
                 inference protocol, or one row as an object.

Values are raw, as in /v1/predict. Bodies of the inference protocol contain stable ids, and so do logs opened
with `ids`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from polyrec.models.data.columns import check_type, column_kind, normalize_column
from polyrec.models.data.parquet import open_parquet, parquet_files
from polyrec.models.data.reader import OnMalformed
from polyrec.models.errors import DataError
from polyrec.models.progress import RowsDone, ignore_rows
from polyrec.models.schema.batch import I64
from polyrec.models.schema.lookup_counts import LookupCounts
from polyrec.models.schema.schema import ROLES, Categorical, Schema

JSON_LINES = (".jsonl", ".json", ".ndjson")
LINES_AT_ONCE = 4096

Columns = dict[str, list[Any]]


class AccessLog:
    """One access log.

    ids: whether it contains stable ids. malformed: lines left out so far.
    Raises DataError if there is no such file, it has none of the features, or a column has the wrong type.
    """

    def __init__(
        self, path: str | Path, schema: Schema, ids: bool = False, on_malformed: OnMalformed = "fatal"
    ) -> None:
        self.path = Path(path)
        self.malformed = 0
        self._schema = schema
        self._ids = ids
        self._fatal = on_malformed == "fatal"
        self._features = {f.name: f for f in schema.categorical}
        if not self.path.exists():
            raise DataError(f"no access log '{path}'")
        self._lines = self.path.suffix in JSON_LINES
        self._files = [] if self._lines else parquet_files(self.path)
        self.rows_hint: int | None = None if self._lines else 0
        for file in self._files:
            with open_parquet(file) as parquet:
                there = parquet.schema_arrow
                if not self._in(there.names):
                    raise DataError(
                        f"{file}: no column is a categorical feature; it has {', '.join(there.names)}"
                    )
                for name in self._in(there.names):
                    check_type(str(file), name, self._kind(name), there.field(name).type)
                self.rows_hint = (self.rows_hint or 0) + parquet.metadata.num_rows

    def count(self, counts: LookupCounts, progress: RowsDone = ignore_rows) -> int:
        """Adds every lookup to `counts` and returns the number of rows or lines.

        progress: called with the number done. Raises DataError naming the first malformed line, if malformed
        lines are fatal, or a value of the wrong type.
        """
        total = 0
        for rows in self._count_lines(counts) if self._lines else self._count_parquet(counts):
            total += rows
            progress(rows)
        return total

    def _in(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._features]

    def _kind(self, name: str) -> Any:
        if not self._ids:
            return column_kind(self._schema, name)
        return "integers" if self._features[name].multi else "integer"

    def _count_parquet(self, counts: LookupCounts) -> Iterator[int]:
        for file in self._files:
            with open_parquet(file) as parquet:
                names = self._in(parquet.schema_arrow.names)
                try:
                    for batch in parquet.iter_batches(columns=names, use_threads=False):
                        for name in names:
                            values = normalize_column(
                                str(file),
                                name,
                                self._kind(name),
                                batch.column(batch.schema.get_field_index(name)),
                            )
                            flat = values.flatten() if self._features[name].multi else values
                            self._add(counts, self._features[name], flat, len(values), self._ids)
                        yield batch.num_rows
                except (OSError, pa.ArrowException) as e:
                    raise DataError(f"cannot read '{file}': {str(e).splitlines()[0]}") from None

    def _count_lines(self, counts: LookupCounts) -> Iterator[int]:
        values, ids = _Cells(), _Cells()
        number = 0
        try:
            with self.path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    self._read_line(line, number, values, ids)
                    if number % LINES_AT_ONCE == 0:
                        self._flush(counts, values, ids)
                        yield LINES_AT_ONCE
        except (OSError, UnicodeDecodeError) as e:
            raise DataError(f"cannot read '{self.path}': {e}") from None
        self._flush(counts, values, ids)
        yield number % LINES_AT_ONCE

    def _read_line(self, line: str, number: int, values: _Cells, ids: _Cells) -> None:
        if not line.strip():
            return
        try:
            body = json.loads(line)
            read_ids = isinstance(body, dict) and "inputs" in body
            found = _lookups(body, self._schema)
            flat = {name: self._typed(name, column, read_ids) for name, column in found.items()}
        except (ValueError, TypeError, RecursionError) as e:
            if self._fatal:
                raise DataError(f"{self.path}, line {number}: {e}") from None
            self.malformed += 1
            return
        for name, column in flat.items():
            (ids if read_ids or self._ids else values).add(name, column, len(found[name]))

    def _typed(self, name: str, column: Sequence[Any], ids: bool) -> list[Any]:
        """Returns the values of a feature, with lists flattened. Raises ValueError for a value of the
        wrong type.
        """
        feature = self._features[name]
        kind = str if feature.type == "string" and not (ids or self._ids) else int
        flat: list[Any] = []
        for value in column:
            if isinstance(value, list):
                flat += value
            elif value is not None or not feature.multi:
                flat.append(value)
        for value in flat:
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise ValueError(f"feature '{name}': {value!r:.80} is not of type {feature.type}")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValueError(f"feature '{name}': {value!r:.80} has more than 64 bits")
        return flat

    def _flush(self, counts: LookupCounts, values: _Cells, ids: _Cells) -> None:
        for cells in (values, ids):
            for name, (flat, rows) in cells.taken().items():
                feature = self._features[name]
                string = feature.type == "string" and cells is values
                self._add(
                    counts, feature, pa.array(flat, pa.string() if string else pa.int64()), rows, cells is ids
                )

    def _add(self, counts: LookupCounts, feature: Categorical, flat: pa.Array, rows: int, ids: bool) -> None:
        if ids:
            numbers: I64 = flat.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            counts.add_ids(feature, numbers, rows)
        else:
            counts.add_values(feature, flat, rows)


class _Cells:
    """Collects flat values of features, and the number of rows that they come from."""

    def __init__(self) -> None:
        self._flat: Columns = {}
        self._rows: dict[str, int] = {}

    def add(self, name: str, flat: list[Any], rows: int) -> None:
        self._flat.setdefault(name, []).extend(flat)
        self._rows[name] = self._rows.get(name, 0) + rows

    def taken(self) -> dict[str, tuple[list[Any], int]]:
        """Returns and clears the values and rows by feature."""
        found = {name: (flat, self._rows[name]) for name, flat in self._flat.items()}
        self._flat, self._rows = {}, {}
        return found


def _lookups(body: Any, schema: Schema) -> Columns:
    """Returns the values that a request looks up, by feature; a context's values once. Raises ValueError."""
    if not isinstance(body, dict):
        raise ValueError("it is not an object")
    if "inputs" in body:
        return _tensor_lookups(body["inputs"], schema)
    names = [f.name for f in schema.categorical]
    if "instances" in body:
        rows = [_mapping(row, "an instance") for row in _sequence(body["instances"], "instances")]
        return {name: [row.get(name) for row in rows] for name in names}
    if "columns" in body:
        columns = _mapping(body["columns"], "columns")
    elif "candidates" in body:
        context = _mapping(body.get("context", {}), "context")
        columns = {name: [value] for name, value in context.items()}
        columns |= _mapping(body["candidates"], "candidates")
    else:
        columns = {name: [value] for name, value in body.items()}
    return {name: _sequence(columns[name], name) for name in names if columns.get(name) is not None}


def _tensor_lookups(inputs: Any, schema: Schema) -> Columns:
    """Returns the stable ids of the inputs of the inference protocol, by feature. Raises ValueError."""
    bags = [f for f in schema.categorical if f.multi]
    singles = {"sparse": schema.tensor_columns()[1]}
    for role in ROLES:
        singles[f"{role}.sparse"] = schema.tensor_columns(role)[1]
    read = {
        **dict.fromkeys(singles),
        **{f"{f.name}.{part}": None for f in bags for part in ("values", "lengths")},
    }
    tensors: Columns = {}
    for tensor in _sequence(inputs, "inputs"):
        name = str(_mapping(tensor, "an input").get("name"))
        if name in read:
            tensors[name] = _flat(_sequence(tensor.get("data", []), f"data of {name}"))
    found: Columns = {}
    for name, features in singles.items():
        for i, feature in enumerate(features if name in tensors else ()):
            found[feature] = tensors[name][i :: len(features)]
    for f in bags:
        if f"{f.name}.values" in tensors:
            flat = tensors[f"{f.name}.values"]
            found[f.name] = _lists(flat, tensors.get(f"{f.name}.lengths", [len(flat)]))
    return found


def _lists(flat: list[Any], lengths: list[Any]) -> list[list[Any]]:
    """Splits values into lists. Raises ValueError unless the lengths add up."""
    if not all(isinstance(n, int) and n >= 0 for n in lengths) or sum(lengths) != len(flat):
        raise ValueError(f"lengths do not add up to {len(flat)} values")
    ends = [0, *accumulate(lengths)]
    return [flat[a:b] for a, b in pairwise(ends)]


def _flat(data: Sequence[Any]) -> list[Any]:
    return [x for row in data for x in (row if isinstance(row, list) else [row])]


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def _sequence(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is not a list")
    return value
