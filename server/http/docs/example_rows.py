"""Makes example rows for a model's API page: a context and some candidates that the server can answer.

A bundle contains no rows of its training data, so the examples are synthetic: the most frequent categorical
values from the vocabularies, and numbers around the mean of the training rows.
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
"""Difference between two candidates' numbers, in standard deviations."""

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExampleRows:
    """Example rows as raw values by feature, and as stable ids.

    context: one value per feature.
    candidates: a list of values per feature.
    ids: stable ids by categorical feature, a list with one entry per row (one row for context features); a
        list of lists for a multi-valued feature.
    """

    context: Values
    candidates: dict[str, list[Any]]
    ids: dict[str, list[Any]]

    @property
    def rows(self) -> list[Values]:
        """Returns one object per row, each including the context."""
        return [
            self.context | {name: column[i] for name, column in self.candidates.items()}
            for i in range(CANDIDATES)
        ]

    @property
    def columns(self) -> dict[str, list[Any]]:
        """Returns one list per feature, with the context repeated."""
        return {name: [value] * CANDIDATES for name, value in self.context.items()} | self.candidates


def example_rows(encoder: Encoder) -> ExampleRows:
    """Returns CANDIDATES rows of one context. Takes milliseconds per million values of a vocabulary."""
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


def frequent_ids(vocabulary: Vocabulary, count: int) -> list[int]:
    """Returns stable ids of up to `count` most frequent values, the most frequent first."""
    ranks = vocabulary.rank_of_id[: vocabulary.size]
    # two more, as the two special rows may be among them
    first = np.flatnonzero(ranks < count + 2)
    found: list[int] = first[np.argsort(ranks[first])][:count].tolist()
    return found


def value_of(vocabulary: Vocabulary, stable_id: int) -> Any:
    """Returns the raw value of a stable id, None for the row of missing values."""
    if stable_id >= vocabulary.size:
        return None
    return stable_id if vocabulary.values is None else vocabulary.values[stable_id].as_py()


def _number(feature: Dense, encoder: Encoder, i: int) -> float:
    """Returns a number near the mean of the training rows, rounded to three digits."""
    standard = encoder.standards.get(feature.name)
    value = 1.0 + i if standard is None else standard.mean + (i - 1) * SPREAD * standard.deviation
    if "log1p" in feature.transform:
        value = math.expm1(min(max(value, 0.0), 40.0))
    return float(f"{value:.3g}")
