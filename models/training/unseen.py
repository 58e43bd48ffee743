"""Measures how often new rows look up ids that training has not seen, to hide as many in training.

In training rows nearly every id is known, but in later rows many are not (85% of trivago's users). A model
that learned to rely on ids is then worse than one that never had them. So id dropout replaces as many
lookups of each feature by the out-of-vocabulary row as the validation rows have unseen ids beyond those of
the training rows. Rare ids are dropped more often than popular ones, in inverse proportion to their lookups:
a model memorizes rare ids, while popular ids will recur.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from polyrec.models.schema.batch import F32, I64, Batch, take_bags
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical
from polyrec.models.training.id_dropout import IdDropout, drop_from_large_tables, make_id_dropout
from polyrec.models.training.recipe import Recipe
from polyrec.models.training.source import RowSource

SLICE_ROWS = 65536
MIN_SHARE = 0.01
"""A feature with a smaller share of unseen ids is left alone."""
MAX_PROBABILITY = 0.95
"""Even the rarest ids are kept now and then, so that no row stays untrained."""


def count_lookups(encoder: Encoder, source: RowSource) -> dict[str, I64]:
    """Counts lookups of each rank: feature -> int64 [rows of its table].

    A context counts once per row. Features without an out-of-vocabulary row, or whose values are defined by a
    cardinality, are left out.
    """
    counts = {
        f.name: np.zeros(encoder.vocabulary(f).rows, np.int64)
        for f in encoder.schema.categorical
        if not f.cardinality and encoder.vocabulary(f).oov_rank >= 0
    }
    for window in source.windows():
        for start in range(0, window.size, SLICE_ROWS):
            batch = window.data.batch(window.rows[start : start + SLICE_ROWS])
            for feature, ranks, times in _lookups(encoder, batch):
                if feature.name in counts:
                    np.add.at(counts[feature.name], ranks, times)
    return counts


def _lookups(encoder: Encoder, batch: Batch) -> Iterator[tuple[Categorical, I64, I64]]:
    """Yields (feature, ranks, times): each lookup of a block and how many rows of the batch share it."""
    times = np.ones(batch.rows, np.int64)
    shared = times if batch.context_row is None else np.bincount(batch.context_row, None, batch.context.rows)
    schema = encoder.schema
    for layout, block, rows in (
        (schema.context, batch.context, shared),
        (schema.candidate, batch.candidate, times),
    ):
        for column, feature in enumerate(layout.singles):
            yield feature, block.ranks[:, column], rows
        for column, feature in enumerate(layout.bags):
            which = np.arange(column, block.bag_offsets.size - 1, len(layout.bags))
            values, offsets = take_bags(block.bag_values, block.bag_offsets, which)
            yield feature, values, np.repeat(rows, np.diff(offsets))


def unseen_shares(encoder: Encoder, known: Mapping[str, I64], new: Mapping[str, I64]) -> dict[str, float]:
    """Returns, per feature, the share of known lookups to hide, so that training resembles validation.

    known, new: `count_lookups` of the training and of the validation rows; if either is empty, nothing is
    hidden. The share is (u - t) / (1 - t), where t is the share of the training rows' lookups that are out
    of vocabulary, and u the share of the validation rows' lookups that are out of vocabulary or of an id
    that this feature never has in training rows. Features below MIN_SHARE are left out.
    """
    shares = {}
    for feature in encoder.schema.categorical:
        before, after = known.get(feature.name), new.get(feature.name)
        if before is None or after is None or not before.sum() or not after.sum():
            continue
        vocabulary = encoder.vocabulary(feature)
        unseen = before == 0
        unseen[vocabulary.oov_rank], unseen[vocabulary.missing_rank] = True, False
        hidden = before[vocabulary.oov_rank] / before.sum()
        share = (after[unseen].sum() / after.sum() - hidden) / max(1.0 - hidden, 1e-9)
        if share >= MIN_SHARE:
            shares[feature.name] = round(float(share), 4)
    return shares


def hide_unseen(encoder: Encoder, counts: Mapping[str, I64], shares: Mapping[str, float]) -> dict[str, F32]:
    """Returns the probability of each rank to be dropped, so that each feature's share of lookups is hidden.

    counts: `count_lookups` of the training rows. An id with n lookups among them is dropped with probability
    min(MAX_PROBABILITY, t / n), where t is chosen to meet the share.
    """
    found = {}
    for feature in encoder.schema.categorical:
        share = shares.get(feature.name, 0.0)
        if not share or feature.name not in counts:
            continue
        vocabulary = encoder.vocabulary(feature)
        count = counts[feature.name].copy()
        count[[vocabulary.oov_rank, vocabulary.missing_rank]] = 0
        probability = np.minimum(MAX_PROBABILITY, _scale(count, share) / np.maximum(count, 1))
        probability[[vocabulary.oov_rank, vocabulary.missing_rank]] = 0.0
        found[feature.name] = probability.astype(np.float32)
    return found


def _scale(count: I64, share: float) -> float:
    """Returns t such that dropping each of n lookups with min(MAX_PROBABILITY, t / n) drops this share."""
    n, ids = np.unique(count[count > 0], return_counts=True)
    lookups = n * ids
    low, high = 0.0, float(n.max(initial=1))
    for _ in range(60):
        middle = (low + high) / 2
        dropped = (np.minimum(MAX_PROBABILITY, middle / n) * lookups).sum()
        low, high = (middle, high) if dropped < share * lookups.sum() else (low, middle)
    return high


def lookups_to_hide(recipe: Recipe, encoder: Encoder, source: RowSource) -> dict[str, I64]:
    """Counts lookups by feature and rank; returns nothing unless the recipe measures what to hide."""
    return count_lookups(encoder, source) if recipe.hide == "unseen" else {}


def recipe_id_dropout(
    recipe: Recipe, encoder: Encoder, lookups: Mapping[str, I64], unseen: Mapping[str, float]
) -> IdDropout | None:
    """Returns the recipe's id dropout.

    lookups: `lookups_to_hide` of the training rows. unseen: feature -> share to hide, if the recipe measures
    it.
    """
    if recipe.hide == "unseen":
        return make_id_dropout(encoder, hide_unseen(encoder, lookups, unseen))
    return make_id_dropout(encoder, drop_from_large_tables(encoder, recipe.hide, recipe.hide_from_rows))
