"""Counts values of the data that a model cannot use as they are: cut lists, and ids without a row.

Encoding follows the schema without an error: a list keeps its first `max_length` values, and an id that the
vocabulary lacks, or that is outside 0 ... cardinality - 1, looks up the row for unknown values. A wrong
`max_length` or `cardinality` would go unnoticed, so `encode` counts by feature what was replaced, and
training reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polyrec.models.schema.batch import Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Role

ALTERED = "altered_values"
"""Key of the counts in a manifest's `training`."""


@dataclass(slots=True)
class FeatureAlterations:
    """Counts of one feature.

    values: values read, without missing ones. unknown: of those, looked up as unknown.
    cut_lists: lists longer than max_length. dropped: their values beyond it. null_in_lists: missing values in
    lists.
    """

    values: int = 0
    unknown: int = 0
    cut_lists: int = 0
    dropped: int = 0
    null_in_lists: int = 0

    def __add__(self, other: FeatureAlterations) -> FeatureAlterations:
        return FeatureAlterations(*(a + b for a, b in zip(_counts(self), _counts(other), strict=True)))


def _counts(found: FeatureAlterations) -> tuple[int, ...]:
    return tuple(asdict(found).values())


@dataclass(slots=True)
class AlteredValues:
    """Counts by feature; a context that is stored once for a request counts once."""

    features: dict[str, FeatureAlterations] = field(default_factory=dict)

    def add(self, encoder: Encoder, role: Role, data: pa.RecordBatch, block: Block) -> None:
        """Adds the values of one role. data: its columns before encoding. block: the same, encoded."""
        unknown = encoder.unknown_of(role, block)
        for f in encoder.schema.layout(role).categorical:
            column = data.column(f.name)
            values = column.flatten() if f.multi else column
            found = FeatureAlterations(len(values) - values.null_count, unknown.get(f.name, 0))
            if f.multi:
                beyond = pc.subtract(pc.fill_null(pc.list_value_length(column), 0), f.max_length).to_numpy()
                found.cut_lists = int(np.count_nonzero(beyond > 0))
                found.dropped = int(beyond[beyond > 0].sum())
                found.null_in_lists = values.null_count
            self._add(f.name, found)

    def _add(self, name: str, found: FeatureAlterations) -> None:
        self.features[name] = self.features.get(name, FeatureAlterations()) + found

    @staticmethod
    def sum(parts: Iterable[AlteredValues]) -> AlteredValues:
        """Returns the counts of all parts."""
        whole = AlteredValues()
        for part in parts:
            for name, found in part.features.items():
                whole._add(name, found)
        return whole

    def record(self) -> dict[str, dict[str, int]]:
        """Returns the counts that are not 0 of features with any alteration; JSON-serializable."""
        return {
            name: {key: count for key, count in asdict(found).items() if count}
            for name, found in self.features.items()
            if any(_counts(found)[1:])
        }

    @staticmethod
    def of_training(training: Mapping[str, Any]) -> AlteredValues:
        """Returns the counts of all splits in a manifest's `training`; none in bundles of older versions."""
        parts = training.get(ALTERED, {}).values()
        return AlteredValues.sum(
            AlteredValues({name: FeatureAlterations(**found) for name, found in part.items()})
            for part in parts
        )

    def warnings(self, categorical: Iterable[Categorical]) -> list[str]:
        """Returns a line for each alteration that suggests a mistake in schema or data.

        Values that a vocabulary lacks are none: later rows have new ids.
        """
        lines = []
        for f in categorical:
            found = self.features.get(f.name, FeatureAlterations())
            if found.cut_lists:
                lines.append(
                    f"feature '{f.name}': {found.cut_lists:,} lists were cut to max_length {f.max_length} "
                    f"and lost {found.dropped:,} of {found.values:,} values; a server refuses such lists"
                )
            if found.null_in_lists:
                lines.append(
                    f"feature '{f.name}': {found.null_in_lists:,} nulls in lists were read as missing "
                    "values, which lists in requests in JSON cannot have"
                )
            if f.cardinality is not None and found.unknown:
                lines.append(
                    f"feature '{f.name}': {found.unknown:,} of {found.values:,} values are outside "
                    f"0 ... {f.cardinality - 1}, its cardinality, and were read as unknown"
                )
        return lines
