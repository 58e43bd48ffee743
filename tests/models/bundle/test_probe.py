from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.probe import ROWS, find_non_finite_row, probe
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder


def row(batch: Batch, i: int) -> Batch:
    return Batch(batch.context.take(np.array([i])), batch.candidate.take(np.array([i])))


def test_probe_rows_equal_encoded_requests(bundle: Bundle) -> None:
    encoder, batch = bundle.encoder, probe(bundle.encoder)
    assert batch.rows == len(ROWS)
    missing = Batch(encoder.block("context", {}, 1), encoder.block("candidate", {}, 1))
    of_none = row(batch, 0)
    for own, expected in ((of_none.context, missing.context), (of_none.candidate, missing.candidate)):
        np.testing.assert_array_equal(own.ranks, expected.ranks)
        np.testing.assert_array_equal(own.dense, expected.dense)
        np.testing.assert_array_equal(own.bag_offsets, expected.bag_offsets)
    assert encoder.unknown(row(batch, 1)) == {f.name: 1 for f in encoder.schema.categorical}
    hottest = row(batch, 2)
    assert not hottest.candidate.ranks.any()
    assert not hottest.context.bag_values.any()
    assert find_non_finite_row(bundle.model(), encoder) is None


def test_the_probe_takes_frequent_values_where_unknown_ones_are_rejected(bundle: Bundle) -> None:
    encoder = bundle.encoder
    refusing = {t: replace(v, oov="refuse") for t, v in encoder.vocabularies.items()}
    strict = Encoder(encoder.schema, refusing, encoder.standards)
    assert not row(probe(strict), 1).candidate.ranks.any()
    assert find_non_finite_row(bundle.model(), strict) is None


def test_the_row_without_an_answer_is_named(bundle: Bundle) -> None:
    model = bundle.model()
    with torch.no_grad():
        model.net.output.weight.fill_(3e38)
        model.net.output.bias.fill_(3e38)
    assert find_non_finite_row(model, bundle.encoder) == "a row of missing values has no finite answer"


def test_an_infinity_that_a_relu_makes_nothing_of_is_seen(bundle: Bundle) -> None:
    model = bundle.model()
    with torch.no_grad():
        net = dict(model.net.named_parameters())
        net["bottom.2.bias"].fill_(10.0)  # the first numbers that the top sees are at least so large
        net["top.0.weight"].zero_()[:, : model.net.shape.width] = -3e38
    with torch.inference_mode():
        assert torch.isfinite(model(probe(bundle.encoder))).all()
    assert find_non_finite_row(model, bundle.encoder) == "a row of missing values has no finite answer"
