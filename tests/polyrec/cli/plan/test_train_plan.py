"""A training plan decides what several workers replicate and how they exchange rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from polyrec.cli.main import main
from polyrec.models.bundle.bundle import Bundle, load_bundle

RECIPE = {
    "architecture": {"width": 8, "bottom": [16], "top": [32], "interaction": "dot"},
    "recipe": {"epochs": 1, "batch_rows": 256, "by_request": True, "hide": 0.0, "dropout": 0.0},
}


@pytest.fixture
def planned(clicks: Path, tmp_path: Path) -> Path:
    """A folder with calibration.safetensors, recipe.yaml and plan.json, of two nodes over a slow link."""
    calibration = tmp_path / "calibration.safetensors"
    assert main(["calibrate", str(clicks), "--schema", "trivago", "--out", str(calibration)]) == 0
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    node = {"name": "small", "rows_per_s": 50_000, "memory": 20_000, "bytes_per_s": "20MB", "most": 2}
    described = {
        **{"calibration": calibration.name, "schema": "trivago", "width": 8},
        **{
            "batch_rows": 256,
            "rows_per_request": 17,
            "rows_per_s": 100_000,
            "net_bytes": 10_000,
            "fixed_bytes": 0,
            "nodes": [node],
        },
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(described))
    plan = ["plan", "--train", str(tmp_path / "train.yaml"), "--out", str(tmp_path / "plan.json")]
    assert main(plan) == 0
    return tmp_path


def trained(folder: Path, clicks: Path, name: str, *options: str) -> Bundle:
    """Trains in a process of its own: workers join a group by the environment."""
    command = [sys.executable, "-m", "polyrec", "train", "--data", str(clicks), "--schema", "trivago"]
    command += ["--calibration", str(folder / "calibration.safetensors")]
    command += ["--recipe", str(folder / "recipe.yaml"), "--out", str(folder / name), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_bundle(folder / name)


@pytest.mark.long
def test_two_workers_replicate_what_the_plan_says_and_equal_one(planned: Path, clicks: Path) -> None:
    chosen = json.loads((planned / "plan.json").read_text())["chosen"]
    assert (chosen["nodes"], chosen["form"]) == (2, "fae")
    # unlike fae, hotline draws rows in the order of one worker
    (planned / "plan.json").write_text(json.dumps({"chosen": chosen | {"form": "hotline"}}))
    replicated = {table: places.get("replicated", 0) for table, places in chosen["tables"].items()}
    assert sum(replicated.values()) > 0
    whole = trained(planned, clicks, "whole")
    shared = trained(planned, clicks, "shared", "--workers", "2", "--plan", str(planned / "plan.json"))
    assert shared.manifest.training["workers"] == {
        **{"number": 2, "exchange": "hotline", "distinct": True, "follow_popularity": False},
        "replicated": replicated,
    }
    for metric in ("log_loss", "auc"):
        np.testing.assert_allclose(shared.test_metrics[metric], whole.test_metrics[metric], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "changes", "says"),
    [
        ((), {}, "--plan needs several workers: start them with --workers"),
        (("--workers", "3"), {}, "is for 2 nodes, not for 3 workers"),
        (("--workers", "2", "--hot-mb", "1"), {}, "--hot-mb is set by the plan of --plan"),
        (
            ("--workers", "2"),
            {"tables": {"item": {"disk": 7}}},
            "has 7 rows in disk: several workers hold all",
        ),
        (("--workers", "2"), {"tables": {"item": {"replicated": -1}}}, "chosen.tables.item.replicated: "),
        (("--workers", "2"), {"form": "shout"}, "chosen.form: "),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    options: tuple[str, ...],
    changes: dict[str, Any],
    says: str,
    planned: Path,
    clicks: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = planned / "plan.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps(raw | {"chosen": raw["chosen"] | changes}))
    command = ["train", "--data", str(clicks), "--schema", "trivago", "--out", str(planned / "bundle")]
    capsys.readouterr()
    assert main([*command, "--plan", str(file), *options]) != 0
    assert says in capsys.readouterr().err
