from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from polyrec.cli.main import main
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.bundle.manifest import NET


def test_another_precision_is_measured_and_not_trained(
    bundle_dir: Path, clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hybrid, out = tmp_path / "hybrid", tmp_path / "hybrid-int8"
    derived = ["--representation", "hybrid", "--steps", "3", "--out", str(hybrid)]
    assert main(["distill", str(bundle_dir), *derived]) == 0
    capsys.readouterr()
    quantize = ["--representation", "int8", "--data", str(clicks), "--out", str(out), "--json"]
    assert main(["distill", str(hybrid), *quantize]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics.keys() == {"source", "test"}
    assert metrics["test"]["auc"] == pytest.approx(metrics["source"]["auc"], abs=0.01)
    assert load_bundle(out).manifest.metrics["test"]["accuracy"] == metrics["test"]["accuracy"]
    before, after = (load_file(folder / NET) for folder in (hybrid, out))
    assert all((before[name] == after[name]).all() for name in before)
