from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "http" / "serve_throughput.py"


def run(*arguments: str) -> str:
    command = [sys.executable, str(PROGRAM), "--seconds", "0.3", "--repeat", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.long
def test_every_workload_is_measured_with_its_split(bundle_dir: Path, clicks: Path) -> None:
    told = json.loads(
        run("--bundle", str(bundle_dir), "--data", str(clicks), "--connections", "4", "--rows", "7", "--json")
    )
    results = told["results"]
    assert {(r["workload"], r["rows"]) for r in results} == {
        ("predict JSON", 1),
        ("infer binary", 1),
        ("rank JSON", 7),
        ("rank binary", 7),
        ("predict JSON", 7),
        ("infer binary", 7),
    }
    for result in results:
        assert result["requests_per_s"] > 0
        assert result["rows_per_s"] == pytest.approx(result["requests_per_s"] * result["rows"])
        assert result["phases_us"].keys() == {"parse", "queue", "encode", "embed", "dense", "serialise"}
        assert all(us > 0 for us in result["phases_us"].values())
        assert result["batch_queries"] >= 1
        assert 0 < result["p50_us"] <= result["p99_us"]


@pytest.mark.long
def test_text_output_is_a_table(bundle_dir: Path, clicks: Path) -> None:
    table = run(
        "--bundle", str(bundle_dir), "--data", str(clicks), "--connections", "1", "--workload", "rank"
    )
    header, *rows = table.splitlines()[1:]
    assert header.split()[:4] == ["workload", "rows", "conns", "req/s"]
    assert [row[:11] for row in rows] == ["rank JSON  ", "rank binary"]
