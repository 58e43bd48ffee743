from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, VALIDATION, fit_splitter
from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.training.id_dropout import make_id_dropout
from polyrec.models.training.source import Rows
from polyrec.models.training.unseen import MAX_PROBABILITY, count_lookups, hide_unseen, unseen_shares


@pytest.fixture(scope="module")
def data(bundle: Bundle, clicks: Path) -> Iterator[EncodedRows]:
    reader = open_data(clicks, bundle.manifest.schema_)
    splitter = fit_splitter(reader, bundle.manifest.schema_)
    with encode(reader, bundle.encoder, splitter, (TRAIN, VALIDATION)) as rows:
        yield rows


def lookups_of(encoder: Encoder, data: EncodedRows, rows: I64) -> dict[str, list[int]]:
    """The slow, obvious form: the ranks that each feature looks up, row by row."""
    found: dict[str, list[int]] = {f.name: [] for f in encoder.schema.categorical}
    for row in rows:
        batch = data.batch(np.array([row]))
        blocks = ((encoder.schema.context, batch.context), (encoder.schema.candidate, batch.candidate))
        for layout, block in blocks:
            for i, f in enumerate(layout.singles):
                found[f.name].append(int(block.ranks[0, i]))
            for i, f in enumerate(layout.bags):
                found[f.name] += block.bag_values[block.bag_offsets[i] : block.bag_offsets[i + 1]].tolist()
    return found


def test_lookups_are_counted_as_row_by_row(bundle: Bundle, data: EncodedRows) -> None:
    rows = np.arange(300)
    counts = count_lookups(bundle.encoder, Rows(data, rows))
    expected = lookups_of(bundle.encoder, data, rows)
    assert set(counts) == {f.name for f in bundle.encoder.schema.categorical if not f.cardinality}
    for name, count in counts.items():
        assert Counter(expected[name]) == {rank: n for rank, n in enumerate(count.tolist()) if n}


def test_shares_are_those_of_unseen_ids_beyond_the_training_rows(bundle: Bundle, data: EncodedRows) -> None:
    training, validation = data.select(TRAIN), data.select(VALIDATION)
    known, new = (count_lookups(bundle.encoder, Rows(data, rows)) for rows in (training, validation))
    shares = unseen_shares(bundle.encoder, known, new)
    before = lookups_of(bundle.encoder, data, training)
    after = lookups_of(bundle.encoder, data, validation)
    for feature in bundle.encoder.schema.categorical:
        if feature.cardinality:
            assert feature.name not in shares
            continue
        vocabulary = bundle.encoder.vocabulary(feature)
        seen = set(before[feature.name]) | {vocabulary.missing_rank}
        t = np.mean([r == vocabulary.oov_rank for r in before[feature.name]])
        u = np.mean([r == vocabulary.oov_rank or r not in seen for r in after[feature.name]])
        expected = (u - t) / (1 - t)
        assert shares.get(feature.name, 0.0) == pytest.approx(expected if expected >= 0.01 else 0, abs=1e-4)
    assert shares["user_id"] > 0.1


def test_the_measured_share_is_hidden_and_rare_ids_more_often(bundle: Bundle, data: EncodedRows) -> None:
    encoder, training = bundle.encoder, data.select(TRAIN)
    shares = {"item": 0.4, "recent_items": 0.3}
    counts = count_lookups(encoder, Rows(data, training))
    probabilities = hide_unseen(encoder, counts, shares)
    hide = make_id_dropout(encoder, probabilities)
    assert hide is not None
    batch = data.batch(training)
    hidden = hide(batch, np.random.default_rng(0))
    column = [f.name for f in encoder.schema.candidate.singles].index("item")
    oov = encoder.vocabularies["item"].oov_rank
    before, after = batch.candidate.ranks[:, column], hidden.candidate.ranks[:, column]
    known = before != oov
    assert (after[known] == oov).mean() == pytest.approx(0.4, abs=0.03)
    assert ((after == before) | (after == oov)).all()
    often = counts["item"][before[known]]
    dropped = after[known] == oov
    assert dropped[often <= np.median(often)].mean() > dropped[often > np.median(often)].mean()
    for name, probability in probabilities.items():
        mean = np.average(probability, weights=np.where(probability > 0, counts[name], 0))
        assert mean == pytest.approx(shares[name], abs=1e-3)
        assert probability.max() <= MAX_PROBABILITY


def test_bags_are_hidden_value_by_value(bundle: Bundle, data: EncodedRows) -> None:
    encoder, training = bundle.encoder, data.select(TRAIN)
    hide = make_id_dropout(
        encoder, hide_unseen(encoder, count_lookups(encoder, Rows(data, training)), {"recent_items": 0.5})
    )
    assert hide is not None
    batch = data.batch(training)
    hidden = hide(batch, np.random.default_rng(1))
    bags = [f.name for f in encoder.schema.context.bags]
    own = np.repeat(np.tile(np.arange(len(bags)), batch.context.rows), np.diff(batch.context.bag_offsets))
    changed = batch.context.bag_values != hidden.context.bag_values
    assert changed.any()
    assert {bags[i] for i in own[changed]} == {"recent_items"}
    assert (hidden.context.bag_values[changed] == encoder.vocabularies["item"].oov_rank).all()
