"""Converts the ids of an inference request back into the raw values that a prediction log stores.

Ids are positions in the vocabulary of the bundle that answered. Missing and unknown values, and values added
by an update, have no raw value there, so the log stores them as missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from polyrec.models.errors import DataError
from polyrec.models.schema.batch import I64
from polyrec.models.schema.popularity import VocabularyDescriptor, vocabulary_values
from polyrec.models.schema.schema import ROLES, Role, Schema
from polyrec.server.codecs.rows import Column, Columns, RankedTensors, RoleTensors, Tensors
from polyrec.server.prediction_log.records import VocabularyFile


class TableValues(NamedTuple):
    """Size and values of a vocabulary, without its ranks and counts, which would double the memory."""

    size: int
    values: pa.Array | None


ValuesByTable = Mapping[str, TableValues]


def load_values(about: VocabularyFile) -> ValuesByTable:
    """Reads the values of a version's ids. Raises DataError, for example if the bundle was replaced."""
    try:
        content = Path(about.file).read_bytes()
    except OSError as e:
        raise DataError(f"cannot read '{about.file}': {e.strerror}") from None
    if hashlib.sha256(content).hexdigest() != about.sha256:
        raise DataError(f"'{about.file}' is not that of version {about.version} any more")
    descriptors = {
        table: VocabularyDescriptor.model_validate(found)
        for table, found in orjson.loads(about.descriptors).items()
    }
    try:
        arrays = load_arrays(content)
        return {t: TableValues(d.size, vocabulary_values(t, d, arrays)) for t, d in descriptors.items()}
    except (SafetensorError, LookupError, ValueError, pa.ArrowException) as e:
        raise DataError(f"cannot read '{about.file}': {e}") from None


class IdValues:
    """The raw values of rows of ids, for one schema."""

    def __init__(self, schema: Schema) -> None:
        self._names = schema.context.names, schema.candidate.names
        self._tables = {f.name: f.table_name for f in schema.categorical}
        self._columns = {role: schema.tensor_columns(role) for role in (None, *ROLES)}

    def columns(self, rows: Tensors | RankedTensors, values: ValuesByTable) -> Columns:
        """Returns the rows as raw values. group: number of each row's request."""
        lengths = rows.request_lengths
        group = [0] * rows.rows if lengths is None else np.repeat(np.arange(lengths.size), lengths).tolist()
        if isinstance(rows, Tensors):
            both = RoleTensors(rows.dense, rows.sparse, rows.bags)
            context = candidate = self._read(None, both, values)
            contexts, context_row = rows.rows, None
        else:
            context = self._read("context", rows.context, values)
            candidate = self._read("candidate", rows.candidate, values)
            contexts, context_row = rows.context.rows, rows.context_row
        of_context, of_rows = self._names
        return Columns(
            self._names,
            [context.get(name) for name in of_context],
            [candidate.get(name) for name in of_rows],
            rows.rows,
            contexts,
            context_row,
            None,
            group,
        )

    def _read(self, role: Role | None, tensors: RoleTensors, values: ValuesByTable) -> dict[str, Column]:
        """Returns columns by feature. role: role of the tensors; None: they have features of both roles."""
        dense, singles = self._columns[role]
        found: dict[str, Column] = {}
        for i, name in enumerate(dense):
            found[name] = tensors.dense[:, i].tolist()
        for i, name in enumerate(singles):
            found[name] = _taken(values[self._tables[name]], tensors.sparse[:, i])
        for name, (ids, lengths) in tensors.bags.items():
            flat, ends = _taken(values[self._tables[name]], ids), np.cumsum(lengths).tolist()
            found[name] = [flat[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        return found


def _taken(table: TableValues, ids: I64) -> list[Any]:
    """Returns the raw values of ids; None for ids without one."""
    known = (ids >= 0) & (ids < table.size)
    if table.values is None:
        return [id if is_known else None for id, is_known in zip(ids.tolist(), known, strict=True)]
    return table.values.take(pa.array(ids, mask=~known)).to_pylist()  # type: ignore[no-any-return]
