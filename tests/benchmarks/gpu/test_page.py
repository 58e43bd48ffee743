"""The page of the figures measured on a GPU."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu.page import page
from polyrec.loadtest.results.figures import figures
from tests.loadtest.runs import outcome_of

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def test_the_bench_that_gpu_sh_writes_has_a_section(tmp_path: Path) -> None:
    for file in RESULTS.glob("gpu-*.json"):
        shutil.copy(file, tmp_path)
    (tmp_path / "gpu-bench.json").unlink(missing_ok=True)
    assert "live" not in "".join(line for line in page(tmp_path).splitlines() if line.startswith("##"))
    outcome = outcome_of([i / 100 for i in range(100)], status=[200] * 90 + [429] * 10)
    ladders: dict[str, dict[str, list[object]]] = {
        "priced": {"500": [asdict(figures(outcome, {"good@cpu": 0.5}))]},
        "static:good@cpu": {},
    }
    trials = {policy: {"ladder": ladder} for policy, ladder in ladders.items()}
    found = {"conditions": {"slo_s": 0.01}, "trials": trials}
    (tmp_path / "gpu-bench.json").write_text(json.dumps(found))
    assert "| queries/s | priced | static:good@cpu |" in page(tmp_path)
    assert "| 500 | 90.0% / " in page(tmp_path)
