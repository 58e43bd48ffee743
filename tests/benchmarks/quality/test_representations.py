from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.quality.representations import main
from benchmarks.quality.tables import between_markers, markdown
from benchmarks.quality.variants import BASELINE, VARIANTS, Derived, Trained


def test_every_variant_derives_from_an_earlier_one() -> None:
    assert isinstance(VARIANTS[BASELINE], Trained)
    seen: set[str] = set()
    for name, variant in VARIANTS.items():
        assert isinstance(variant, Trained) or variant.source in seen
        if isinstance(variant, Trained | Derived):
            assert "/" not in name
        seen.add(name)


def test_a_run_measures_every_variant_and_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--runs", str(tmp_path), "--variants", "table-int8", "table, net bf16"]
    main(arguments)
    first = capsys.readouterr()
    assert first.err.count("training table") == 2
    assert first.err.count("deriving table-int8") == 2
    found = json.loads((tmp_path / "quality.json").read_text())["data"]["trivago"]
    assert list(found["variants"]) == ["table", "table-int8", "table, net bf16"]
    table, quantize_bundle, served = found["variants"].values()
    assert [run["seed"] for run in table["runs"]] == found["seeds"] == [0, 1]
    assert table["to_baseline"] is None
    assert quantize_bundle["bytes"]["rows"] < table["bytes"]["rows"]
    assert quantize_bundle["flops_per_row"] == table["flops_per_row"]
    assert served["bytes"] == table["bytes"]
    mean = sum(run["auc"] for run in quantize_bundle["runs"]) / 2
    assert quantize_bundle["spread"]["auc"]["mean"] == pytest.approx(mean)
    assert markdown(found, "table") in first.out

    main(arguments)
    again = capsys.readouterr()
    assert "training" not in again.err.replace("train:", "")
    assert "deriving" not in again.err
    assert again.out == first.out


def found_with(low: float, high: float, deviation: float) -> dict[str, object]:
    spread = {m: {"mean": 0.5, "deviation": deviation} for m in ("auc", "log_loss", "accuracy")}
    spread["normalised_entropy"] = {"mean": 0.9, "deviation": deviation}
    interval = {"interval": {"value": (low + high) / 2, "low": low, "high": high}}
    cost = {"bytes": {"total": 1_000_000, "rows": 800_000}, "flops_per_row": {"total": 100_000}}
    table = {"spread": spread, "to_baseline": None, **cost}
    other = {"spread": spread, "to_baseline": {"auc": interval, "log_loss": interval}, **cost}
    other["bytes"] = {"total": 250_000, "rows": 80_000}
    return {"variants": {"table": table, "other": other}}


def test_the_table_marks_real_differences() -> None:
    real, noise = (markdown(found_with(low, 0.3, 0.01), "table") for low in (0.1, -0.1))
    assert "0.50000 ± 0.01000" in real
    assert "| 250 kB | 0.250 | 0.100 | 0.1 |" in real
    assert "better by 0.20000 (0.10000 to 0.30000) | worse by 0.20000 (0.10000 to 0.30000) |" in real
    assert "noise (" in noise
    assert "±" not in markdown(found_with(0.1, 0.3, math.nan), "table")


def test_only_text_between_the_markers_is_replaced() -> None:
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n"
    assert between_markers(page, "x", r"new \1") == "a\n<!-- begin x -->\nnew \\1\n<!-- end x -->\nb\n"
    with pytest.raises(SystemExit, match="lacks the markers '<!-- begin y -->'"):
        between_markers(page, "y", "new")
