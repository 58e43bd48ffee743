"""Dropout for ids: replaces ids by the out-of-vocabulary row at random during training.

With probability `rate`, a look-up in a large learned vocabulary takes the out-of-vocabulary row. This
prevents the model from memorizing rare ids, which click models overfit within an epoch, and trains the
out-of-vocabulary row for new ids in serving.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyrec.models.schema.batch import Batch, Block
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Role

IdDropout = Callable[[Batch, np.random.Generator], Batch]


def make_id_dropout(encoder: Encoder, rate: float, from_rows: int) -> IdDropout | None:
    """Returns a function that drops ids of single-valued features in tables of at least `from_rows` rows.

    Missing values stay missing, since serving knows whether a value is given. Returns None if no feature is
    affected.
    """
    chosen: dict[Role, list[tuple[int, int, int]]] = {"context": [], "candidate": []}
    for role, columns in chosen.items():
        for i, feature in enumerate(encoder.schema.layout(role).singles):
            vocabulary = encoder.vocabulary(feature)
            if vocabulary.rows >= from_rows and vocabulary.oov_rank >= 0 and not feature.cardinality:
                columns.append((i, vocabulary.missing_rank, vocabulary.oov_rank))
    if not rate or not any(chosen.values()):
        return None

    def block(data: Block, role: Role, random: np.random.Generator) -> Block:
        if not chosen[role]:
            return data
        ranks = data.ranks.copy()
        for column, missing, oov in chosen[role]:
            hidden = (random.random(data.rows) < rate) & (ranks[:, column] != missing)
            ranks[hidden, column] = oov
        return Block(data.dense, ranks, data.bag_values, data.bag_offsets)

    def hide(batch: Batch, random: np.random.Generator) -> Batch:
        return Batch(
            block(batch.context, "context", random),
            block(batch.candidate, "candidate", random),
            batch.context_row,
        )

    return hide
