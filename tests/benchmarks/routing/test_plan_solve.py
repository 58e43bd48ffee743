from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.routing.plan_solve import main


@pytest.mark.long
def test_a_smaller_machine_is_planned_with_its_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--tables", "20", "--rates", "20000", "--held", "0.3", "--seeds", "1", "--limit", "20"]
    main([*arguments, "--json", str(tmp_path / "r.json")])
    (result,) = json.loads((tmp_path / "r.json").read_text())["results"]
    assert "gap to LP bound" in capsys.readouterr().out
    assert result["paths"] == 72
    assert 0 <= result["proven"] < 1e-6
    # no plan is better than the relaxation, and this one is near it
    assert 0 <= result["gap"] < 1e-2
    assert result["deployed"]
