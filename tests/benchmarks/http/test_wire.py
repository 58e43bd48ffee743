from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.long  # starts the benchmark each time


def run(bundle: Path, data: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.http.wire", "--bundle", str(bundle), "--data", str(data)]
    given = ["--rounds", "1", "--candidates", "40", *arguments]
    return subprocess.run([*command, *given], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_context_that_is_sent_once_saves_bytes_in_every_format(bundle_dir: Path, clicks: Path) -> None:
    results = json.loads(run(bundle_dir, clicks, "--json"))["results"]
    assert {r["format"] for r in results} == {"/v1, JSON", "infer, JSON", "infer, binary"}
    for result in results:
        ranked, exploded = result["ranked"], result["exploded"]
        assert result["candidates"] == 40
        assert ranked["bytes"] < exploded["bytes"]
        assert ranked["gzip_bytes"] < ranked["bytes"]
        assert all(figures["parse_us"] > 0 < figures["encode_us"] for figures in (ranked, exploded))


def test_text_output_is_a_table(bundle_dir: Path, clicks: Path) -> None:
    _, head, _, *rows = run(bundle_dir, clicks).splitlines()
    assert len(rows) == 3
    assert {row.count("|") for row in rows} == {head.count("|")}
