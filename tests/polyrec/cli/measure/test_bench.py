from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polyrec.cli.main import main
from polyrec.loadtest.comparison.comparison import Conditions, PolicyComparison
from polyrec.loadtest.comparison.policy_server import PolicyServer
from polyrec.loadtest.drivers.connection import LoadError
from polyrec.loadtest.traffic.source import open_source
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.plan import Plan, load_plan, save_plan


@pytest.fixture(scope="module")
def plan(bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One bundle as two paths, so that there is something to choose."""
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    path = {"bundle": bundle_dir, "runtime": "onnx"}
    paths = (
        {**path, "name": "a@cpu", "quality": 0.9},
        {**path, "name": "b@cpu", "quality": 0.8, "precision": "int8"},
    )
    save_plan(Plan.model_validate({"paths": paths}), file)
    return file


@pytest.mark.long
def test_policies_take_turns_on_a_live_server_and_a_report_is_written(
    plan: Path, clicks: Path, tmp_path: Path
) -> None:
    # a process of its own: the driver pins itself to a core
    done = subprocess.run(
        [
            *(sys.executable, "-m", "polyrec", "bench", "--plan", str(plan), "--data", str(clicks)),
            *("--policies", "static:a@cpu,priced", "--slo-ms", "60000", "--max-lag-ms", "60000"),
            *("--seconds", "0.5", "--warmup", "0.1", "--rates", "40,80", "--no-search", "--no-step"),
            *("--simulate", "--out", str(tmp_path), "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made == json.loads((tmp_path / "bench.json").read_text())
    assert made["doubts"] == []
    assert set(made["trials"]) == {"static:a@cpu", "priced"}
    for trial in made["trials"].values():
        assert set(trial["ladder"]) == set(trial["simulated"]) == {"40", "80"}
        for (run,) in trial["ladder"].values():
            assert run["ok"] == 1.0
            assert run["information"] > 0
        # the same requests for all
        assert trial["ladder"]["80"][0]["requests"] == made["trials"]["priced"]["ladder"]["80"][0]["requests"]
    assert list(made["trials"]["static:a@cpu"]["ladder"]["40"][0]["mix"]) == ["a@cpu"]
    assert {p.name for p in tmp_path.iterdir()} == {"bench.html", "bench.png", "bench.json"}
    assert "most information within 60000 ms" in (tmp_path / "bench.html").read_text()


@pytest.mark.long
def test_a_ladder_tells_when_all_policies_have_run_at_a_rate(plan: Path, clicks: Path) -> None:
    opened = load_plan(plan)
    policies = ("static:a@cpu", "priced")
    conditions = Conditions(slo_s=60.0, seconds=0.2, warmup_s=0.1, max_lag_s=60.0)
    source = open_source(clicks, load_bundle(opened.paths[0].bundle), 0)
    seen: list[list[list[float]]] = []
    with PolicyServer(opened, policies, os.sched_getaffinity(0), {}) as server:
        comparison = PolicyComparison(server, source, conditions, str)
        comparison.run_ladder(
            (40.0, 80.0), lambda: seen.append([list(trial.ladder) for trial in comparison.trials.values()])
        )
    assert seen == [[[40.0], [40.0]], [[40.0, 80.0], [40.0, 80.0]]]


def test_a_server_that_dies_ends_the_comparison_with_the_reason(plan: Path, clicks: Path) -> None:
    opened = load_plan(plan)
    conditions = Conditions(slo_s=60.0, seconds=0.2, warmup_s=0.1, max_lag_s=60.0)
    source = open_source(clicks, load_bundle(opened.paths[0].bundle), 0)

    def compare() -> None:
        with PolicyServer(opened, ("static:a@cpu",), os.sched_getaffinity(0), {}) as server:
            comparison = PolicyComparison(server, source, conditions, str)
            comparison.run_ladder((40.0, 80.0), lambda: os.kill(server.pid, signal.SIGKILL))

    with pytest.raises(LoadError, match="the server that was compared was killed by SIGKILL"):
        compare()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--policies", "static:c@cpu"),
            "--policies: 'static:c@cpu' is unknown; known: all, static, dynamic",
        ),
        (("--rates", "10,fast"), "--rates '10,fast': give requests a second, like 100,200,400"),
        (("--no-search",), "--no-search needs --rates"),
        (("--sizes", "huge"), "sizes"),
        (("--server-cores", "0,x"), "--server-cores '0,x': give some of 0"),
        (("--margin-ms", "20"), "leaves the server nothing"),
    ],
)
def test_a_users_mistake_is_one_line(
    plan: Path, flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--plan", str(plan), *flags]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
