"""The steps of benchmarks.gpu.training on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gpu.page import training_table
from benchmarks.gpu.training import cases, measure


def test_every_case_is_measured_and_written(tmp_path: Path) -> None:
    out = tmp_path / "training.json"
    report = measure("cpu", 1_000, (64,), 0.01, out)
    assert json.loads(out.read_text()) == report
    assert len(report["cases"]) == len(list(cases((64,))))
    assert all(rate > 0 for one in report["cases"] for rate in one["rows_per_s"].values())
    assert len(training_table(report)) == 2 + len(report["cases"])
