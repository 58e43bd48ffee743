from __future__ import annotations

import numpy as np
import pytest

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.loadtest.traffic.queries import Queries
from polyrec.loadtest.traffic.synthetic import synthetic_rows
from polyrec.models.bundle.bundle import Bundle


def test_synthetic_requests_are_grouped_and_share_their_context(bundle: Bundle) -> None:
    sizes = np.array([3, 1, 7])
    table = synthetic_rows(bundle.encoder, 3, sizes, np.random.default_rng(1))
    queries = Queries(table, bundle.manifest.schema_, bundle.encoder)
    assert queries.sizes.tolist() == sizes.tolist()
    for i in range(3):
        rows = table.take(queries[i].candidates)
        assert len(set(rows["user_id"].to_pylist())) == 1


def test_values_are_drawn_in_the_skew_that_the_bundle_was_trained_on(bundle: Bundle) -> None:
    vocabulary = bundle.encoder.vocabularies["item"]
    table = synthetic_rows(bundle.encoder, 2000, 10, np.random.default_rng(2))
    ranks = vocabulary.encode_arrow(table["item"].combine_chunks())
    assert (ranks != vocabulary.oov_rank).all()
    seen = np.bincount(ranks, minlength=vocabulary.rows) / ranks.size
    counts = vocabulary.counts.astype(float)
    counts[vocabulary.oov_rank] = 0
    expected = counts / counts.sum()
    hottest = vocabulary.rows // 20
    assert seen[:hottest].sum() == pytest.approx(expected[:hottest].sum(), abs=0.02)
    assert expected[:hottest].sum() > 3 * hottest / vocabulary.rows


def test_numbers_have_the_distribution_of_the_training_rows(bundle: Bundle) -> None:
    table = synthetic_rows(bundle.encoder, 4000, 1, np.random.default_rng(4))
    standard = bundle.encoder.standards["price"]
    logs = np.log1p(table["price"].to_numpy())
    assert logs.mean() == pytest.approx(standard.mean, rel=0.05)
    assert logs.std() == pytest.approx(standard.deviation, rel=0.1)


def test_the_encoder_accepts_all_values(bundle: Bundle) -> None:
    with pytest.raises(LoadError, match="cannot make 0 requests"):
        synthetic_rows(bundle.encoder, 0, 3, np.random.default_rng(0))
