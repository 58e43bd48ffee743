"""Weights opened alone execute as their bundle does."""

from __future__ import annotations

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.weights import open_weights
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.representation import KINDS, Representation, RepresentationKind, initial_stage
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.errors import BundleError
from polyrec.models.runtimes import open_runtime
from tests.models.random_batches import random_batch


@pytest.mark.parametrize("kind", KINDS)
def test_weights_predict_like_their_bundle(
    kind: RepresentationKind, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> None:
    schema, vocabularies = bundle.manifest.schema_, bundle.encoder.vocabularies
    encoding = None if kind == "table" else Encoding(k=16, hidden=(8,))
    stored = {} if kind == "table" else {t: v.rows // 2 for t, v in vocabularies.items()}
    representation = Representation(kind=kind, encoding=encoding, cuts=stored)
    stage = initial_stage(representation, schema, vocabularies, 8, 0)
    net = DenseNet(
        Architecture(width=8, bottom=(8,), top=(8,), interaction="dot"), dense_slots(schema), stage.slots
    )
    folder = tmp_path_factory.mktemp(kind) / "bundle"
    written = write_bundle(folder, DLRM(stage, net), representation, bundle.encoder, {}, {})
    weights = open_weights(written.files, written.manifest.version)
    rows = {t: v.rows for t, v in vocabularies.items()}
    batch = random_batch(np.random.default_rng(5), schema, rows, 60, 4)
    expected = open_runtime("torch", written).predict(batch)
    np.testing.assert_allclose(open_runtime("torch", weights).predict(batch), expected, rtol=0, atol=1e-6)


def test_weights_of_another_version_are_rejected(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match=r"was overwritten: .* another is served; reload it"):
        open_weights(bundle.files, "another")
