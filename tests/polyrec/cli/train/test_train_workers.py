"""Tests what the terminal shows of a training by several workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

SCHEMA = {
    "name": "few",
    "categorical": [{"name": "user", "role": "context"}, {"name": "item"}],
    "label": {"column": "clicked"},
    "split": {"rule": "column", "columns": ["part"]},
}
PARTS = np.array(["train"] * 220 + ["validation"] * 30 + ["test"] * 100)


def train_by_two(folder: Path, without_clicks: str) -> subprocess.CompletedProcess[str]:
    """Trains on rows of which one part has no click, in a process: workers join by the environment."""
    random = np.random.default_rng(0)
    clicked = (random.random(PARTS.size) < 0.3) & ~np.isin(PARTS, without_clicks)
    users, items = ([f"{i}" for i in random.integers(0, n, PARTS.size)] for n in (60, 40))
    rows = pa.table({"user": users, "item": items, "part": PARTS, "clicked": clicked.astype(np.int8)})
    pq.write_table(rows, folder / "data.parquet")
    (folder / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    command = [sys.executable, "-m", "polyrec", "train", "--data", "data.parquet", "--schema", "schema.yaml"]
    command += ["--out", "bundle", "--workers", "2"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("part", ["train", pytest.param("validation", marks=pytest.mark.long)])
def test_rows_of_one_class_give_warnings(tmp_path: Path, part: str) -> None:
    done = train_by_two(tmp_path, part)
    assert "Traceback" not in done.stderr
    if part == "train":
        assert done.returncode
        assert "polyrec: error: data.parquet: all 220 training rows are without a click" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("all 30 validation rows are without a click") == 1
