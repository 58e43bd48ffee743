"""The tiers that benchmarks.gpu.tiers compares, and its steps on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.page import tiers_table
from benchmarks.gpu.tiers import CASES, PATH, cuts_of, plan_of, requests_of
from benchmarks.peers.models import MODELS, write_model
from benchmarks.peers.queries import EXPONENT
from polyrec.models.bundle.bundle import Bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    model = replace(MODELS["large"], rows=3_000)
    return write_model(model, tmp_path_factory.mktemp("bundles") / "model", EXPONENT)


def test_a_case_places_every_row_once(bundle: Bundle, tmp_path: Path) -> None:
    rows = {table: v.rows for table, v in bundle.encoder.vocabularies.items()}
    for case in CASES:
        plan = plan_of(bundle, "cpu", case, tmp_path)
        assert plan.in_tiers == bool(case.tiers)
        if plan.placement is None:
            continue
        (placed,) = plan.placement.paths
        assert placed.path == PATH
        assert {table: sum(cuts.counts) for table, cuts in placed.tables.items()} == rows
        assert placed.rows("device") == pytest.approx(sum(rows.values()) / 4, rel=0.05)
        assert bool(placed.rows("disk")) == ("disk" in case.tiers)


def test_every_second_request_is_hot(bundle: Bundle) -> None:
    drawn = requests_of(bundle, 6)
    on_device = [cut["device"] for cut in cuts_of(bundle, ("device", "host")).values()]
    ranks = np.stack(
        [v.rank_of_id[drawn.sparse[:, :, i]] for i, v in enumerate(bundle.encoder.vocabularies.values())],
        axis=2,
    )
    far = (ranks >= np.maximum(on_device, 1)).any(axis=(1, 2))
    assert far.tolist() == [False, True] * 3


@pytest.mark.long
def test_all_steps_run_without_a_gpu(tmp_path: Path) -> None:
    # a process of its own: the driver pins itself to a core
    command = [sys.executable, "-m", "benchmarks.gpu.tiers", "--device", "cpu", "--small", "--seconds", "0.1"]
    command += ["--folder", str(tmp_path), "--out", str(tmp_path / "tiers.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "tiers.json").read_text())
    assert list(found["cases"]) == [case.name for case in CASES]
    for case in CASES:
        one = found["cases"][case.name]
        assert one["rows_per_s"] > 0
        assert (one["disk"] + one["cache"] > 0) == ("disk" in case.tiers)
    assert "\n".join(tiers_table(found)) in done.stdout
