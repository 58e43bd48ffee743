"""MP-Rec's evaluation: one trace for all policies, figures that go one way, the command's small version."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.routing.mprec.__main__ import main
from benchmarks.routing.mprec.evaluation import best, evaluate, factor, serve, variations
from benchmarks.routing.mprec.paths import Assumptions
from benchmarks.routing.mprec_machines import MODELS

KAGGLE = MODELS[0]
BASE = Assumptions()


def test_two_queries_never_share_a_batch_unless_merged() -> None:
    alone, merged = (serve(KAGGLE, "gpu", BASE, merge, 10) for merge in (False, True))
    rows = np.sort(alone.trace(2_000, 1_000)[1])
    assert rows[0] + rows[1] > alone.max_rows >= rows[-1]
    assert rows.mean() == pytest.approx(BASE.rows, rel=0.02)
    assert merged.trace(2_000, 1_000)[1].max() > alone.max_rows
    assert merged.capacity() > alone.capacity()


@pytest.mark.long
def test_policies_see_one_trace_and_no_rule_beats_the_offered_load() -> None:
    case = serve(KAGGLE, "gpu", BASE, False, 20)
    found = evaluate(case, (0.4, 1.0, 1.2), 300)
    best_accuracy = max(p.quality for p in case.paths)
    assert len({(run["load"], run["queries_per_s"]) for run in found["runs"]}) == 3
    for run in found["runs"]:
        assert 0 <= run["in_time"] <= 1
        assert run["correct_per_s"] <= 1.2 * run["queries_per_s"] * BASE.rows * best_accuracy
        assert sum(run["mix"].values()) == pytest.approx(1)
        if run["policy"].startswith("static:"):
            assert set(run["mix"]) == {run["policy"].removeprefix("static:")}
            assert run["accuracy"] == pytest.approx(KAGGLE.accuracy["table"])
    priced = [run for run in found["runs"] if run["policy"] == "priced"]
    assert priced[0]["accuracy"] > priced[2]["accuracy"] > KAGGLE.accuracy["table"] - 1e-9
    assert priced[0]["in_time"] > 0.99
    most = best(found, "priced")
    assert most is not None
    assert most["load"] == 1.0
    assert (factor(found, "priced", "static:table@cpu") or 0) > 1.2
    assert factor(found, "priced", "priced") == 1.0
    assert best(found, "static:nothing") is None


def test_every_variation_changes_one_assumption() -> None:
    names = [v.name for v in variations(BASE)]
    assert len(set(names)) == len(names)
    for v in variations(BASE)[1:]:
        changed = [f for f in Assumptions.__slots__ if getattr(v.assumed, f) != getattr(BASE, f)]
        assert len(changed) == 1, v.name


@pytest.mark.long
def test_the_small_version_of_the_command_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--out", str(tmp_path), "--quick"])
    page = (tmp_path / "mprec.md").read_text()
    assert page.rstrip() == capsys.readouterr().out.rstrip()
    found = json.loads((tmp_path / "mprec.json").read_text())
    assert {(f["machine"], f["merge"]) for f in found["serving"]} == {
        ("gpu", False),
        ("gpu", True),
        ("tpu", False),
        ("ipu", False),
    }
    for heading in ("Beside the paper", "Sensitivity", "What is assumed"):
        assert f"\n## {heading}\n" in page
    for figure in ("2.49", "16.65", "0.19"):
        assert figure in page
    assert (tmp_path / "mprec.png").stat().st_size > 10_000
