"""The page of the figures measured on a GPU."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.gpu.page import OPTIONAL, page
from polyrec.loadtest.results.figures import figures
from tests.loadtest.runs import outcome_of

RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The figures that the page must have."""
    for name in ("lookup", "serving", "profile", "simulated"):
        shutil.copy(RESULTS / f"gpu-{name}.json", tmp_path)
    return tmp_path


def section(folder: Path, heading: str) -> str:
    """Returns the text of a section."""
    return page(folder).split(f"\n## {heading}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_section_without_figures_says_so(name: str, folder: Path) -> None:
    assert section(folder, OPTIONAL[name][0]).strip() == "Not measured."


def test_the_bench_that_gpu_sh_writes_has_a_section(folder: Path) -> None:
    outcome = outcome_of([i / 100 for i in range(100)], status=[200] * 90 + [429] * 10)
    ladders: dict[str, dict[str, list[object]]] = {
        "priced": {"500": [asdict(figures(outcome, {"good@cpu": 0.5}))]},
        "static:good@cpu": {},
    }
    trials = {policy: {"ladder": ladder} for policy, ladder in ladders.items()}
    found = {"conditions": {"slo_s": 0.01}, "trials": trials}
    (folder / "gpu-bench.json").write_text(json.dumps(found))
    shown = section(folder, "Routing over both devices, live")
    assert "| queries/s | priced | static:good@cpu |" in shown
    assert "| 500 | 90.0% / " in shown


def test_knees_and_large_requests_are_shown_if_they_were_measured(folder: Path) -> None:
    file = folder / "gpu-serving.json"
    served = json.loads(file.read_text())
    one = {"closed_requests_per_s": 100.0, "alone_ms": 5.0}
    served["sizes"] = {"23": {"polyrec, cuda:0": one, "plain FastAPI, cuda:0": one}}
    file.write_text(json.dumps(served))
    shown = section(folder, "Served")
    assert "| polyrec, cuda:0 | 100 | 1.00 | 5.00 |" in shown
    assert "Knees were not measured. Requests of 2,048 rows were not measured." in shown
    served["sizes"]["2048"] = {"polyrec, cuda:0": one | {"knee_requests_per_s": 1234.5}, "failed plain": one}
    file.write_text(json.dumps(served))
    shown = section(folder, "Served")
    assert "| polyrec, cuda:0 | 100 |  | 5.00 | 1,234 |" in shown
    assert "not measured" not in shown


def test_a_new_profile_replaces_the_earlier_one(folder: Path) -> None:
    latency = {"rows": [1, 1024], "median_s": [0.001, 0.002], "tail_s": [0.001, 0.002]}
    paths = [{"path": {"name": "dhe@cuda:0"}, "latency": latency}]
    (folder / "gpu-paths.json").write_text(json.dumps({"paths": paths}))
    shown = section(folder, "Representations")
    assert "| dhe@cuda:0 | 1.00 |" in shown
    assert "before" not in shown


def test_tiers_are_shown_as_far_as_they_were_measured(folder: Path) -> None:
    lookups = {"device": 0.75, "host": 0.25, "cache": 0.0, "disk": 0.0}
    cases: dict[str, dict[str, float | None]] = {"device and host": {"rows_per_s": 5e5, **lookups}}
    file = folder / "gpu-tiers.json"
    file.write_text(json.dumps({"rows": 4_000_000, "cases": cases}))
    assert "| device and host | 500,000 | 75%/25%/0%/0% |  |  |  |  |  |" in section(
        folder, "Served from tiers"
    )
    timed = {"in_time": 0.5, "hot_p50_ms": 1.0, "hot_p99_ms": 2.0, "other_p50_ms": 3.0, "other_p99_ms": None}
    cases["device and host"] |= timed
    file.write_text(json.dumps({"rows": 4_000_000, "rate": 1234, "cases": cases}))
    shown = section(folder, "Served from tiers")
    assert "| 75%/25%/0%/0% | 50.0% | 1.0 | 2.0 | 3.0 |  |" in shown
    assert "4.0 M rows x 64" in shown
    assert "1,234 Poisson requests/s" in shown


def test_training_is_shown_beside_the_cpu(folder: Path) -> None:
    case = {"kind": "table", "net": "shipped", "precision": "bf16", "batch_rows": 4096}
    cases = [case | {"rows_per_s": {"cpu": 1000.0, "device": 2500.0}}]
    (folder / "gpu-training.json").write_text(json.dumps({"cases": cases}))
    assert "| table | shipped | bf16 | 4,096 | 1,000 | 2,500 | 2.50 |" in section(folder, "Training")
