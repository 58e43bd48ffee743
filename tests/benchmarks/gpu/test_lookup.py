from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks.gpu.lookup import HITS, Size, measure, require_equal, table
from benchmarks.gpu.model import GpuModel, lookup_variants, predictions
from polyrec.models.tiers.device.kernels import PRECISIONS

TINY = Size(rows=60, batches=(1, 5), kernel_batches=(3,), repeats=2, copied=1 << 12)


@pytest.fixture(scope="module")
def model() -> Iterator[GpuModel]:
    model = GpuModel(torch.device("cpu"), 60)
    yield model
    model.close()


@pytest.mark.parametrize("hit", HITS)
def test_every_variant_gives_the_same_vectors_and_answers(model: GpuModel, hit: float) -> None:
    for tried in (lookup_variants(model), predictions(model)):
        with torch.inference_mode():
            require_equal(tried, [model.batch(rows, hit) for rows in (1, 7)])


def test_variants_that_differ_are_not_timed(model: GpuModel) -> None:
    tried = {"right": lambda batch: np.zeros(batch.candidate.rows), "wrong": lambda batch: np.ones(1)}
    with pytest.raises(SystemExit, match="wrong gives other numbers"):
        require_equal(tried, [model.batch(1, 1.0)])


def test_a_batch_has_the_given_hit_rate(model: GpuModel) -> None:
    for hit in HITS:
        ranks = model.batch(2000, hit).candidate.ranks
        assert (ranks < model.device_rows).mean() == pytest.approx(hit, abs=0.01)


def test_all_steps_run_without_a_gpu() -> None:
    report = measure(torch.device("cpu"), TINY)
    assert {(k["precision"], k["hit"]) for k in report["kernel"]} == {
        (p, h) for p in PRECISIONS for h in HITS
    }
    assert {(r["batch"], r["hit"]) for r in report["predictions"]} == {(b, h) for b in (1, 5) for h in HITS}
    assert all(t > 0 for part in ("lookups", "predictions") for r in report[part] for t in r["us"].values())
    assert report["kernel_by"] == "torch"
    shown = table(report)
    assert "| kernel | batch |" in shown
    assert "embedding_bag_plain" in shown
