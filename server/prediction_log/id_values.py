"""Turns the ids of an inference request back into the raw values that a prediction log stores.

Ids are places in the vocabulary of the bundle that answered. A missing value, an unknown one and a value that
an update added have no value there: the log has them as missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from polyrec.models.errors import DataError
from polyrec.models.schema.batch import I64
from polyrec.models.schema.popularity import VocabularyDescriptor, vocabularies_from_tensors
from polyrec.models.schema.schema import Role, Schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.server.codecs.rows import Column, Columns, RankedTensors, RoleTensors, Tensors
from polyrec.server.prediction_log.records import VocabularyFile

Vocabularies = Mapping[str, Vocabulary]


def load_vocabularies(about: VocabularyFile) -> Vocabularies:
    """Reads the vocabularies of a version, by table. Raises DataError, such as for a replaced bundle."""
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
        return vocabularies_from_tensors(load_arrays(content), descriptors)
    except SafetensorError as e:
        raise DataError(f"cannot read '{about.file}': {e}") from None


class IdValues:
    """The raw values of rows of ids, for one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._names = schema.context.names, schema.candidate.names
        self._dense = [d.name for d in schema.dense]
        self._singles = [f.name for f in schema.categorical if not f.multi]
        self._given = {
            role: ([d.name for d in layout.given], [f.name for f in layout.singles])
            for role, layout in (("context", schema.context), ("candidate", schema.candidate))
        }

    def columns(self, rows: Tensors | RankedTensors, vocabularies: Vocabularies) -> Columns:
        """Returns the same rows as raw values; group: the number of each row's request."""
        lengths = rows.request_lengths
        group = [0] * rows.rows if lengths is None else np.repeat(np.arange(lengths.size), lengths).tolist()
        if isinstance(rows, Tensors):
            both = RoleTensors(rows.dense, rows.sparse, rows.bags)
            context = candidate = self._read(both, self._dense, self._singles, vocabularies)
            contexts, context_row = rows.rows, None
        else:
            context = self._of_role("context", rows.context, vocabularies)
            candidate = self._of_role("candidate", rows.candidate, vocabularies)
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

    def _of_role(self, role: Role, tensors: RoleTensors, vocabularies: Vocabularies) -> dict[str, Column]:
        return self._read(tensors, *self._given[role], vocabularies)

    def _read(
        self, tensors: RoleTensors, dense: Sequence[str], singles: Sequence[str], vocabularies: Vocabularies
    ) -> dict[str, Column]:
        """Columns by feature. dense, singles: names of the columns of the tensors."""
        tables = {f.name: f.table_name for f in self._schema.categorical}
        found: dict[str, Column] = {}
        for i, name in enumerate(dense):
            found[name] = tensors.dense[:, i].tolist()
        for i, name in enumerate(singles):
            found[name] = _values(vocabularies[tables[name]], tensors.sparse[:, i])
        for name, (ids, lengths) in tensors.bags.items():
            values, ends = _values(vocabularies[tables[name]], ids), np.cumsum(lengths).tolist()
            found[name] = [values[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        return found


def _values(vocabulary: Vocabulary, ids: I64) -> list[Any]:
    """Raw values of ids; None for one without a value."""
    known = (ids >= 0) & (ids < vocabulary.size)
    if vocabulary.values is None:
        return [id if is_known else None for id, is_known in zip(ids.tolist(), known, strict=True)]
    places = pa.array(ids, mask=~known)
    return vocabulary.values.take(places).to_pylist()  # type: ignore[no-any-return]
