"""Implements dropout for ids: replaces ids by the out-of-vocabulary row at random during training.

This keeps the model from memorizing rare ids, which click models overfit within an epoch, and trains the
out-of-vocabulary row for new ids in serving. The probability is a constant from the recipe for all large
tables, or measured by models/training/unseen.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from polyrec.models.schema.batch import F32, Batch, Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES, Role

IdDropout = Callable[[Batch, np.random.Generator], Batch]
Probabilities = Mapping[str, F32]
"""By feature: the probability that a lookup of each rank is dropped, float32 [rows of its table]."""


def drop_from_large_tables(encoder: Encoder, rate: float, from_rows: int) -> dict[str, F32]:
    """Returns equal probabilities for single-valued features with vocabularies of at least `from_rows` rows.

    Missing values stay missing, since serving knows whether a value is given.
    """
    found = {}
    for feature in encoder.schema.categorical:
        vocabulary = encoder.vocabulary(feature)
        if feature.multi or feature.cardinality or vocabulary.oov_rank < 0 or vocabulary.rows < from_rows:
            continue
        found[feature.name] = np.full(vocabulary.rows, rate, np.float32)
        found[feature.name][vocabulary.missing_rank] = 0.0
    return found if rate else {}


def make_id_dropout(encoder: Encoder, probabilities: Probabilities) -> IdDropout | None:
    """Returns a function that drops ids from a batch; None if no feature is affected."""
    if not probabilities:
        return None

    def block(data: Block, role: Role, random: np.random.Generator) -> Block:
        layout = encoder.schema.layout(role)
        ranks, values = data.ranks, data.bag_values
        for column, feature in enumerate(layout.singles):
            if feature.name in probabilities:
                dropped = random.random(data.rows) < probabilities[feature.name][ranks[:, column]]
                ranks = ranks.copy() if ranks is data.ranks else ranks
                ranks[dropped, column] = encoder.vocabulary(feature).oov_rank
        bag = np.zeros(0, np.int64)
        for column, feature in enumerate(layout.bags):
            if feature.name in probabilities and data.rows:
                if values is data.bag_values:
                    values = values.copy()
                    bag = data.bag_columns()
                own = np.flatnonzero(bag == column)
                dropped = random.random(own.size) < probabilities[feature.name][values[own]]
                values[own[dropped]] = encoder.vocabulary(feature).oov_rank
        return Block(data.dense, ranks, values, data.bag_offsets)

    def hide(batch: Batch, random: np.random.Generator) -> Batch:
        context, candidate = (
            block(data, role, random)
            for role, data in zip(ROLES, (batch.context, batch.candidate), strict=True)
        )
        return Batch(context, candidate, batch.context_row)

    return hide
