"""`polyrec simulate`: a plan's policies under synthetic traffic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyrec.cli.main import main
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan, PlannedLane, PlannedPath, save_plan


def path(name: str, quality: float, row_s: float) -> PlannedPath:
    median = (1e-4 + row_s, 1e-4 + 1024 * row_s)
    latency = LatencyModel(rows=(1, 1024), median_s=median, tail_s=tuple(1.4 * m for m in median))
    return PlannedPath(name=name, bundle=Path(name), runtime="onnx", quality=quality, latency=latency)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    lanes = tuple(PlannedLane(name=f"cpu{i}", kind="process") for i in range(2))
    paths = (path("hybrid@cpu", 0.79, 3e-5), path("table@cpu", 0.78, 4e-6))
    save_plan(Plan(paths=paths, lanes=lanes, default_budget_ms=20), file)
    return file


def test_policies_are_compared_on_the_same_traffic(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--traffic",
        "rate=600,sizes=mlperf",
        "--seconds",
        "1",
        "--policy",
        "all",
        "--bound",
        "--json",
    ]
    assert main(["simulate", "--plan", str(plan), *arguments]) == 0
    told = {p["policy"]: p for p in json.loads(capsys.readouterr().out)["policies"]}
    assert set(told) == {"priced", "mprec", "deeprecsys", "static:hybrid@cpu", "static:table@cpu"}
    assert len({p["queries"] for p in told.values()}) == 1
    assert all(0 <= p["of_bound"] <= 1.0001 for p in told.values())
    assert told["priced"]["of_bound"] > 0.98
    assert told["static:hybrid@cpu"]["in_budget"] < 0.8
    assert len(told["priced"]["course"]) == 10


def test_faults_are_simulated(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--traffic", "rate=100", "--seconds", "1", "--fault", "kill:cpu0:0.3-0.6"]
    assert main(["simulate", "--plan", str(plan), *arguments]) == 0
    said = capsys.readouterr().out
    assert "priced: " in said
    assert "in budget 100.00%" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--traffic", "rate=x"], "'x' is not a number"),
        (["--traffic", "rate=5", "--policy", "static:best@cpu"], "unknown path"),
        (["--traffic", "rate=5", "--policy", "clever"], "policy 'clever' is unknown"),
        (["--traffic", "rate=5", "--fault", "slow:gpu:2:1-2"], "names no lane"),
        (["--traffic", "rate=5", "--seconds", "0"], "--seconds 0"),
        (["--traffic", "rate=5", "--budget-ms", "-1"], "--budget-ms -1"),
        (["--traffic", "rate=5", "--budget-ms", "nan"], "--budget-ms nan"),
        (["--traffic", "rate=5", "--seconds", "nan"], "--seconds nan"),
        (["--traffic", "rate=5", "--seconds", "inf"], "--seconds inf"),
        (["--traffic", "rate=5", "--seconds", "1e12"], "are more than 100,000,000 queries"),
        (["--traffic", "rate=5,arrivals=bursty", "--seconds", "1e300"], "are more than"),
        (["--traffic", "rate=1e300"], "rate: "),
        (["--traffic", "rate=5", "--fault", "slow:cpu0:nan:0-1"], "a factor be above 0"),
    ],
)
def test_users_mistakes_are_one_line(
    plan: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--plan", str(plan), *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_plan_without_figures_is_an_error_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    save_plan(Plan(paths=(PlannedPath(name="table@cpu", bundle=Path("b"), runtime="onnx"),)), file)
    assert main(["simulate", "--plan", str(file), "--traffic", "rate=5"]) == 2
    assert "polyrec profile" in capsys.readouterr().err
