from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quality.dhe_sweep import CONFIGURATIONS, cost, information, tables
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.cost import flops
from polyrec.models.evaluation.metrics import log_loss

FIGURES = {"auc": 0.7, "mflop": 1.0, "rows_bytes": 10**6, "decoders_bytes": 0}


def test_there_are_twenty_valid_shapes_of_dhe() -> None:
    dhe = [c.training for c in CONFIGURATIONS.values() if c.kind == "dhe"]
    assert all(t.recipe.epochs == 1 for t in dhe)
    assert len({t.encoding.model_dump_json() for t in dhe}) >= 20
    assert (1024, (512, 256)) in {(t.encoding.k, t.encoding.hidden) for t in dhe}


def test_information_is_that_of_the_log_loss() -> None:
    label = np.array([0, 1, 1, 0, 1], np.float32)
    p = np.array([0.2, 0.7, 0.6, 0.4, 0.9], np.float32)
    rate = label.mean()
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert information(log_loss(p, label), label) == pytest.approx(1 - log_loss(p, label) / entropy, abs=1e-6)
    assert information(entropy, label) == pytest.approx(0, abs=1e-6)


def test_cost_of_a_table_counts_its_rows_and_net(bundle: Bundle) -> None:
    found = cost(bundle.model(), len(bundle.manifest.schema_.numbers))
    rows = sum(v.rows for v in bundle.encoder.vocabularies.values())
    assert found["rows_bytes"] == 4 * rows * bundle.shape.width
    assert found["decoders_bytes"] == 0
    assert found["mflop"] == pytest.approx(flops(bundle).total / 1e6)


def test_the_best_configuration_is_first_and_missing_ones_are_named() -> None:
    rows = {"rows": {"training": 90, "validation": 10}}
    one, best, *rest = CONFIGURATIONS
    gains = {one: 0.1, best: 0.2}
    figures = {label: {"information": gain, **FIGURES, **rows} for label, gain in gains.items()}
    lines = tables({"ml1m": figures, "bookcrossing": figures}).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:4]] == [f"| {best}", f"| {one}"]
    assert f"Not run for lack of time: {', '.join(rest)}." in lines[-1]
