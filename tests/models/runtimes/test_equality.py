"""Every runtime computes the model's function, whatever the representation and the form of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.schema.batch import Batch
from tests.models.executions import EXECUTIONS
from tests.models.random_batches import random_batch
from tests.models.runtimes.conftest import Runtimes

BOUND = {"fp32": 5e-6, "bf16": 0.03, "int8": 0.03}
"""Largest error of a probability."""


@pytest.mark.parametrize(("name", "precision"), EXECUTIONS)
def test_probabilities_are_those_of_the_model(
    runtimes: Runtimes, made: Bundle, name: str, precision: DensePrecision
) -> None:
    model, runtime = made.model().eval(), runtimes(name, precision)
    sizes = {table: v.rows for table, v in made.encoder.vocabularies.items()}

    @settings(max_examples=15)
    @given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 5))
    def holds(seed: int, rows: int, contexts: int) -> None:
        random = np.random.default_rng(seed)
        ranking = random_batch(random, made.manifest.schema_, sizes, rows, contexts)
        plain = ranking.exploded()
        with torch.inference_mode():
            expected = model(plain).sigmoid().numpy()
        for batch in (plain, ranking, Batch.concat([plain, ranking])):
            got = runtime.predict(batch)
            reference = np.tile(expected, batch.rows // rows)
            np.testing.assert_allclose(got, reference, rtol=0, atol=BOUND[precision])

    holds()
