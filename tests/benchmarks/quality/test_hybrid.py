from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.quality.hybrid import (
    BASE,
    BYTES,
    CASES,
    HYBRID,
    MODELS,
    OPERATIONS,
    TABLE,
    WIDEST,
    HybridCost,
    compared,
    tables,
    training_of,
    widened,
    widest_within,
)
from polyrec.models.dlrm.cost import net_flops
from polyrec.models.evaluation.metrics import evaluate


def of_width(width: int) -> HybridCost:
    flops = net_flops(widened(width), 3, 5).total
    return HybridCost(width, 4 * width * 1000, flops / 1e6)


def test_a_table_is_widened_to_the_most_that_does_not_exceed_the_limit() -> None:
    limit = HybridCost(16, of_width(40).bytes + 1, of_width(70).mflop)
    assert widest_within(limit, of_width, "bytes") == 40
    assert widest_within(limit, of_width, "mflop") == 70
    assert widest_within(HybridCost(16, 0, 0.0), of_width, "bytes") == BASE.width
    assert widest_within(HybridCost(16, 10**12, 0.0), of_width, "bytes") == WIDEST


def test_a_widened_table_has_a_net_in_proportion_and_hybrid_the_default_one() -> None:
    assert widened(BASE.width) == BASE
    twice = widened(2 * BASE.width)
    assert twice.top == tuple(2 * n for n in BASE.top)
    assert twice.cross_rank == 2 * BASE.cross_rank
    assert training_of(CASES["ml1m"], BASE.width, seed=3).recipe.seed == 3


def predictions(label: np.ndarray) -> dict[str, list[np.ndarray]]:
    """hybrid and the wide table are nearer to the labels than the table, by the same in every seed."""
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.2, (2, label.size))
    strength = {TABLE: 0.2, HYBRID: 0.4, BYTES: 0.4, OPERATIONS: 0.5}
    return {
        model: [np.clip(0.5 + by * (label - 0.5) + 0.5 * n, 0.01, 0.99).astype(np.float32) for n in noise]
        for model, by in strength.items()
    }


def test_differences_have_the_sign_of_what_is_better() -> None:
    label = (np.random.default_rng(1).random(3000) < 0.4).astype(np.float32)
    p = predictions(label)
    found = compared(p, label, None)
    gain = {m: np.mean([evaluate(one, label).information for one in p[m]]) for m in MODELS}
    for model in (HYBRID, OPERATIONS):
        own = found[model]["to_table"]["information"]
        assert own["value"] == pytest.approx(gain[model] - gain[TABLE])
        assert own["verdict"] == "better"
    of_hybrid = found[OPERATIONS]["hybrid_to_it"]["information"]
    assert of_hybrid["value"] == pytest.approx(gain[HYBRID] - gain[OPERATIONS])
    assert of_hybrid["verdict"] == "worse"
    assert found[BYTES]["hybrid_to_it"]["information"]["verdict"] == "identical"
    assert found[TABLE]["to_table"] is None


def test_the_page_has_a_line_for_each_model_with_cost_and_differences() -> None:
    label = (np.random.default_rng(1).random(3000) < 0.4).astype(np.float32)
    record: dict[str, Any] = {
        "rows": {"training": 900, "validation": 100, "test": 200},
        "costs": {m: {"width": 16, "bytes": 2_000_000, "mflop": 0.5} for m in MODELS},
        "runs": {m: {"0": {"cpu_s": 4.0}, "1": {"cpu_s": 6.0}} for m in MODELS},
        "compared": compared(predictions(label), label, None),
    }
    lines = tables({"ml1m": record}).splitlines()
    assert "900 training, 100 validation and 200 test rows, 2 seeds." in lines
    table = next(line for line in lines if line.startswith(f"| {TABLE} |"))
    assert table.startswith("| table | 16 | 2.00 | 0.50 | 5 |")
    hybrid = next(line for line in lines if line.startswith(f"| {HYBRID} |"))
    assert hybrid.count(" to +") == 1
    assert hybrid.endswith(" |  |")
