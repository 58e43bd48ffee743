"""`polyrec loop` as a person calls it, without a server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.operations.written_log import request_starts, write_log
from polyrec.cli.main import main
from polyrec.loop.folder import LoopFolder
from polyrec.loop.iteration import Iteration, State
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.schema.schema import load_schema
from polyrec.planner.plan import load_plan, save_plan, single_path_plan
from tests.polyrec.loop.conftest import days, times_of_day  # noqa: F401


@pytest.fixture
def run(tmp_path: Path, bundle_dir: Path, days: Sequence[pa.Table]) -> list[str]:  # noqa: F811
    """The words of `polyrec loop run` over a log of one day."""
    schema = load_schema("trivago")
    at_s = times_of_day(0, request_starts(days[0], schema).size)
    write_log(tmp_path / "log", days[0], schema, at_s)
    save_plan(single_path_plan(bundle_dir, "table", "onnx"), tmp_path / "plan.json")
    files = {"--plan": "plan.json", "--log": "log", "--state": "state"}
    words = [word for flag, name in files.items() for word in (flag, str(tmp_path / name))]
    return ["loop", "run", *words, "--least-clicks", "40", "--margin", ".1", "--settle", "1s"]


def status(state: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["loop", "status", "--state", str(state), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_help_tells_when_a_canary_is_promoted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["loop", "run", "--help"])
    loop = " ".join(capsys.readouterr().out.split())
    assert "not before this time: 1h (default 10m)" in loop
    with pytest.raises(SystemExit):
        main(["rollout", "start", "--help"])
    assert "not before this time: 1h (default: only by command)" in " ".join(capsys.readouterr().out.split())


def test_one_iteration_is_held_by_an_operator_released_and_shown(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--state", str(tmp_path / "state")]
    assert main(["loop", "status", *state]) == 2
    assert "is not a loop's folder" in capsys.readouterr().err
    assert main(["loop", "hold", "train", "--state", str(tmp_path)]) == 2  # it has other files
    assert "is not a loop's folder" in capsys.readouterr().err
    # before the loop's first run
    assert main(["loop", "hold", "train", "--reason", "busy", *state]) == 0
    assert main(["loop", "force", *state]) == 2
    assert "there is no iteration yet" in capsys.readouterr().err
    assert main(["loop", "hold", "train", "--reason", "busy", *state]) == 0
    assert f"polyrec loop release train {' '.join(state)}" in capsys.readouterr().out
    assert main([*run, "--once"]) == 3
    assert "iteration 1: held before train by an operator: busy" in capsys.readouterr().out
    assert main(["loop", "status", *state]) == 0
    shown = capsys.readouterr().out
    assert "held before train: busy" in shown
    assert "running: train" in shown
    assert f"to end it: polyrec loop drop {' '.join(state)} --iteration 1" in shown
    assert main(["loop", "force", *state]) == 2
    assert "iteration 1 is running" in capsys.readouterr().err
    assert main(["loop", "release", "train", *state]) == 0
    assert main([*run, "--once", "--train-options", "--epochs 1 --step-size .2"]) == 0
    assert "iteration 1: published" in capsys.readouterr().out
    assert main(["loop", "status", *state]) == 0
    shown = capsys.readouterr().out
    assert "no loop runs here" in shown
    assert "evaluate go" in shown
    (iteration,) = status(tmp_path / "state", capsys)["iterations"]
    bundle = load_bundle(load_plan(tmp_path / "state" / "plan.json").paths[0].bundle)
    assert iteration["done"][1]["result"]["figures"]["version"] == bundle.manifest.version
    assert bundle.manifest.training["from"]["step_size"] == 0.2
    assert main(["loop", "drop", *state]) == 2
    assert "has ended: published" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "state"), [("force", "rolled_back"), ("drop", "running")])
def test_a_command_for_another_iteration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, state: State
) -> None:
    """Between a look at the status and the command, the loop may have begun the next iteration."""
    folder = LoopFolder(tmp_path)
    folder.create()
    fields: dict[str, Any] = {"began": 1.0, "since": None, "until": "u", "serving": "v", "step_began": 1.0}
    folder.save(Iteration(number=5, state="held", **fields))
    folder.save(Iteration(number=6, state=state, step="canary", **fields))
    words = ["loop", command, "--state", str(tmp_path)]
    assert main([*words, "--iteration", "5"]) == 2
    said = f"iteration 5 is not the current one, which is 6 ({state.replace('_', ' ')}): nothing was changed"
    assert said in capsys.readouterr().err
    assert folder.controls() == set()
    assert main([*words, "--iteration", "6"]) == 0
    assert folder.controls() == {f"{command}-6"}


@pytest.mark.long
def test_a_failure_is_one_line_and_the_next_run_goes_on(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*run, "--once", "--train-options", "--epochs -1"]) == 2
    assert "train: training ended with status 2" in capsys.readouterr().err
    assert status(tmp_path / "state", capsys)["iterations"][0]["attempts"] == 1
    assert main([*run, "--once"]) == 0


def test_a_killed_loop_goes_on_at_its_step(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "polyrec", *run, "--train-options", "--epochs 1"]
    record = tmp_path / "state" / "iterations" / "0001" / "record.json"
    # however late it is killed
    assert main(["loop", "hold", "evaluate", "--state", str(tmp_path / "state")]) == 0
    capsys.readouterr()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("iteration 1: check: information gain")
        assert status(tmp_path / "state", capsys)["running"]
        assert main([*run, "--once"]) == 2
        assert "another loop runs in" in capsys.readouterr().err
        child.kill()
    assert json.loads(record.read_text())["step"] in ("train", "evaluate")
    assert main(["loop", "release", "evaluate", "--state", str(tmp_path / "state")]) == 0
    capsys.readouterr()
    # its training may live on, and is then waited for
    until = time.monotonic() + 300
    while (code := main([*run, "--once", "--train-options", "--epochs 1"])) == 2:
        # the training that lives on writes into the same log, possibly after the one that was refused
        assert "training ended with status 2" in capsys.readouterr().err
        assert "another training uses this folder" in record.with_name("train.log").read_text()
        assert time.monotonic() < until
        time.sleep(0.5)
    assert code == 0
    found = json.loads(record.read_text())
    assert [done["step"] for done in found["done"]] == ["check", "train", "evaluate", "publish"]
    assert found["state"] == "published"


def test_a_running_loop_ends_at_a_signal_with_its_training(run: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polyrec", *run, "--train-options", "--epochs 50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        log = tmp_path / "state" / "iterations" / "0001" / "train.log"
        while not log.exists():
            time.sleep(0.02)
        child.terminate()
        assert child.wait(timeout=120) == 130


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("--log", "nowhere"), "nowhere"),
        (("--plan", "nowhere.json"), "no plan file"),
    ],
)
def test_mistakes_are_one_line(
    run: list[str], change: tuple[str, str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*run, *change, "--once"]) == 2
    assert reason in capsys.readouterr().err
