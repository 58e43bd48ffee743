"""Example rows of a model, made from its vocabulary: a context and some candidates that a server answers.

Categorical values are the most frequent ones, numbers lie around the mean of the training rows. A bundle
keeps no rows of its data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Dense
from polyrec.models.schema.vocabulary import Vocabulary

CANDIDATES = 3
LIST_LENGTH = 2
SPREAD = 0.5
"""Distance between the numbers of two candidates, in deviations."""

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExampleRows:
    """Rows as raw values by feature, and as stable ids.

    context: one value a feature. candidates: one list a feature. ids: stable ids of categorical features, a
    list for each, of the context one long; for a multi-valued feature a list of lists.
    """

    context: Values
    candidates: dict[str, list[Any]]
    ids: dict[str, list[Any]]

    @property
    def rows(self) -> list[Values]:
        """One object a row, the context in each."""
        return [
            self.context | {name: column[i] for name, column in self.candidates.items()}
            for i in range(CANDIDATES)
        ]

    @property
    def columns(self) -> dict[str, list[Any]]:
        """One list a feature, the context repeated."""
        return {name: [value] * CANDIDATES for name, value in self.context.items()} | self.candidates


def example_rows(encoder: Encoder) -> ExampleRows:
    """Makes CANDIDATES rows of one context. Takes milliseconds for each million values of a vocabulary."""
    frequent = {table: frequent_ids(v, CANDIDATES) for table, v in encoder.vocabularies.items()}
    columns: dict[str, list[Any]] = {}
    ids: dict[str, list[Any]] = {}
    for f in encoder.schema.categorical:
        vocabulary = encoder.vocabulary(f)
        rows = 1 if f.role == "context" else CANDIDATES
        known = frequent[f.table_name]
        if f.multi:
            length = min(LIST_LENGTH, f.max_length, len(known))
            ids[f.name] = [known[:length]] * rows
            columns[f.name] = [[value_of(vocabulary, i) for i in some] for some in ids[f.name]]
        else:
            ids[f.name] = [known[i % len(known)] if known else vocabulary.missing_id for i in range(rows)]
            columns[f.name] = [value_of(vocabulary, i) for i in ids[f.name]]
    for d in encoder.schema.dense:
        rows = 1 if d.role == "context" else CANDIDATES
        columns[d.name] = [_number(d, encoder, i) for i in range(rows)]
    features: tuple[Dense | Categorical, ...] = (*encoder.schema.dense, *encoder.schema.categorical)
    return ExampleRows(
        {f.name: columns[f.name][0] for f in features if f.role == "context"},
        {f.name: columns[f.name] for f in features if f.role == "candidate"},
        ids,
    )


def frequent_ids(vocabulary: Vocabulary, most: int) -> list[int]:
    """Stable ids of the most frequent values, the most frequent first; fewer if there are fewer."""
    ranks = vocabulary.rank_of_id[: vocabulary.size]
    # the two special rows may be among the first
    first = np.flatnonzero(ranks < most + 2)
    found: list[int] = first[np.argsort(ranks[first])][:most].tolist()
    return found


def value_of(vocabulary: Vocabulary, stable_id: int) -> Any:
    """The raw value of a stable id; None of the row of missing values."""
    if stable_id >= vocabulary.size:
        return None
    return stable_id if vocabulary.values is None else vocabulary.values[stable_id].as_py()


def _number(feature: Dense, encoder: Encoder, i: int) -> float:
    """A number near the mean of the training rows, in three digits."""
    standard = encoder.standards.get(feature.name)
    value = 1.0 + i if standard is None else standard.mean + (i - 1) * SPREAD * standard.deviation
    if "log1p" in feature.transform:
        value = math.expm1(min(max(value, 0.0), 40.0))
    return float(f"{value:.3g}")
