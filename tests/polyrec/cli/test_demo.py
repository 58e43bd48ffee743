from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyrec.cli.main import main
from polyrec.planner.plan import load_plan


@pytest.mark.long
def test_the_demo_trains_plans_serves_and_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--once", "--json", "--port", "0", "--rows", "20000", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [*told["metrics"]] == ["table.w4", "table.w16", "table.w64"]
    for metrics in told["metrics"].values():
        assert 0.5 < metrics["auc"] < told["planted"]["auc"]
        assert metrics["log_loss"] > told["planted"]["log_loss"]
    scores = told["answer"]["scores"]
    assert scores == sorted(scores, reverse=True)
    plan = load_plan(out / "plan.json")
    assert told["answer"]["path"] in {path.name for path in plan.paths}
    assert {path.bundle.name for path in plan.paths} == {"table"}
    loads = told["loads"]
    assert [load["load"] for load in loads] == ["at rest", "busy", "peak"]
    assert loads[0]["rate"] < loads[1]["rate"] < loads[2]["rate"]
    assert {path for load in loads for path in load["mix"]} <= {path.name for path in plan.paths}
    assert all(path.latency is not None and path.quality is not None for path in plan.paths)


def test_a_port_in_use_is_reported_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from polyrec.server.app.listening import listen

    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    try:
        assert main(["demo", "--once", "--port", str(port), "--out", str(tmp_path / "demo")]) == 2
    finally:
        listener.close()
    assert "cannot listen" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("port", ["65536", "-1"])
def test_a_port_that_cannot_be_is_reported_before_the_training(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--once", f"--port={port}", "--out", str(tmp_path / "demo")])
    assert f"{port} is not a port from 0 to 65535" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
