"""Denormal numbers, whose products take processors up to a hundred times as long, are zero to a dense net."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import F32
from polyrec.models.schema.encoder import Encoder
from tests.models.executions import EXECUTIONS

DENORMAL = 1e-38


@pytest.fixture(scope="module")
def magnifying(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A model whose first layer multiplies dense features by 1e34, to see whether denormal ones count."""
    representation = Representation()
    stage = initial_stage(representation, encoder.schema, encoder.vocabularies, width=8, seed=2, spread=0.5)
    torch.manual_seed(2)
    architecture = Architecture(width=8, bottom=(16,), top=(32,), interaction="cat")
    net = DenseNet(architecture, dense_slots(encoder.schema), stage.slots)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "bottom" in name and name.endswith("weight") and weight.shape[0] == 16:
                weight.fill_(1e34)
    out = tmp_path_factory.mktemp("magnifying") / "bundle"
    return write_bundle(out, DLRM(stage, net), representation, encoder, {}, {})


@pytest.mark.parametrize(("name", "precision"), EXECUTIONS)
def test_denormal_features_are_zero_to_every_runtime(
    magnifying: Bundle, name: str, precision: DensePrecision
) -> None:
    runtime = open_runtime(name, magnifying, precision=precision)

    def predicted(price: float) -> F32:
        encoder = magnifying.encoder
        batch = encoder.from_ids(
            np.full((3, len(encoder.schema.dense)), price, np.float32),
            np.zeros((3, len(encoder.schema.singles)), np.int64),
            {
                f.name: (np.zeros(0, np.int64), np.zeros(3, np.int64))
                for f in encoder.schema.categorical
                if f.multi
            },
        )
        return runtime.predict(batch)

    zero = predicted(0.0)
    np.testing.assert_array_equal(predicted(DENORMAL), zero)
    assert (predicted(1e-34) != zero).all()
    # only while the net is executed
    assert np.float32(DENORMAL) * np.float32(1) != 0
