from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyrec.cli.main import main
from polyrec.models.bundle.bundle import load_bundle


def test_rows_are_reserved(bundle_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["reserve", str(bundle_dir), "--rows", "item=12", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reserved"] == {"item": 12}
    before, after = load_bundle(bundle_dir), load_bundle(out)
    assert after.encoder.vocabularies["item"].reserved().size == 12
    assert after.test_metrics == before.test_metrics
    assert main(["inspect", str(out), "--vocabulary", "item"]) == 0
    assert capsys.readouterr().out.count("(reserved)") == 12
    assert main(["reserve", str(bundle_dir), "--rows", "item=12", "--out", str(out)]) == 2
    assert main(["reserve", str(bundle_dir), "--rows", "item=12", "--out", str(out), "--replace"]) == 0
    assert "reserved rows: 12 in item" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["item", "item=", "=3", "item=0", "item=-1", "item=1.5"])
def test_invalid_numbers_of_rows_are_reported(
    given: str, bundle_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reserve", str(bundle_dir), "--rows", given, "--out", str(tmp_path / "out")]) == 2
    assert "give TABLE=N" in capsys.readouterr().err


def test_a_table_is_named_once(bundle_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["--rows", "item=3", "--rows", "item=5"]
    assert main(["reserve", str(bundle_dir), *rows, "--out", str(tmp_path / "out")]) == 2
    assert "table 'item' is named twice" in capsys.readouterr().err
