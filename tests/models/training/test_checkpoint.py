from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.checkpoint import Checkpoints, CheckpointSettings, ResumeError, State
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile
from polyrec.models.training.trainer import StepReport

DEADLINE_S = 60
RECIPE = """
architecture: {width: 4, bottom: [8], top: [8], interaction: cat}
recipe: {epochs: 3, batch_rows: 64, dropout: 0.1, average: 0.9, refit: true, patience: 20}
"""
COMMAND = """
import sys
from polyrec.cli.main import main
sys.exit(main())
"""


def state(value: float) -> State:
    return State({"model.w": torch.full((3,), value)}, {"step": round(value)})


def settings(folder: Path, every_s: float = 10.0) -> CheckpointSettings:
    return CheckpointSettings(folder, every_s)


def test_the_last_state_comes_back(tmp_path: Path) -> None:
    lines: list[str] = []
    with Checkpoints(settings(tmp_path), {"data": "a"}) as checkpoints:
        assert checkpoints.load("fit") is None
        checkpoints.save("fit", state(1))
        checkpoints.save("fit", state(2))
    with Checkpoints(settings(tmp_path), {"data": "a"}, lines.append) as checkpoints:
        found = checkpoints.load("fit")
        assert checkpoints.load("refit") is None
    assert found is not None
    assert found.under("model")["w"].tolist() == [2, 2, 2]
    assert lines == [f"checkpoint '{tmp_path}/fit.safetensors': resumed after step 2"]


def test_a_checkpoint_is_due_when_its_time_has_passed(tmp_path: Path) -> None:
    now = [0.0]
    with Checkpoints(settings(tmp_path), {}, clock=lambda: now[0]) as checkpoints:
        assert not checkpoints.due()
        now[0] = 10
        assert checkpoints.due()
        checkpoints.save("fit", state(1))
        assert not checkpoints.due()


def test_another_training_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    with Checkpoints(settings(tmp_path), {"data": "a", "recipe": {"recipe": {"epochs": 3}}}) as checkpoints:
        checkpoints.save("fit", state(1))
    changed = {"data": "a", "recipe": {"recipe": {"epochs": 4}}}
    with (
        Checkpoints(settings(tmp_path), changed) as checkpoints,
        pytest.raises(ResumeError, match=r"recipe\.recipe\.epochs was 3, is 4; run the old command"),
    ):
        checkpoints.load("fit")


def test_only_files_of_the_training_are_removed(tmp_path: Path) -> None:
    other = tmp_path / "calibration.safetensors"
    other.write_bytes(b"a user's")
    with Checkpoints(settings(tmp_path), {}) as checkpoints:
        checkpoints.save("fit", state(1.0))
        checkpoints.remove()
    assert list(tmp_path.iterdir()) == [other]


def test_a_folder_is_of_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        Checkpoints(settings(tmp_path), {}),
        pytest.raises(ResumeError, match="another training uses this folder"),
    ):
        Checkpoints(settings(tmp_path), {})


def test_a_damaged_file_is_an_error_and_a_part_of_one_is_removed(tmp_path: Path) -> None:
    (tmp_path / "fit.safetensors").write_bytes(b"\x01" * 40)
    part = tmp_path / ".fit.safetensors.partial-1"
    part.write_bytes(b"x")
    with (
        Checkpoints(settings(tmp_path), {}) as checkpoints,
        pytest.raises(ResumeError, match="cannot read checkpoint"),
    ):
        checkpoints.load("fit")
    assert not part.exists()


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 9, 23, 40])
def test_an_interrupted_training_goes_on_to_the_same_checks_and_weights(
    clicks: Path, tmp_path: Path, stop: int
) -> None:
    """Interrupted in the first window, between checks, in later epochs and in the second training."""
    schema = load_schema("trivago")
    training = RecipeFile(
        architecture=Architecture(width=4, bottom=(8,), top=(8,), interaction="cat"),
        recipe=Recipe(
            epochs=3,
            batch_rows=512,
            dropout=0.1,
            average=0.9,
            checks_per_epoch=3,
            refit=True,
            linear_start=(0, 4500),
        ),
    )
    reports: list[StepReport] = []

    def progress(report: StepReport) -> None:
        reports.append(report)
        if len(reports) == stop:
            raise Interrupted

    def learner(folder: str) -> Learner:
        place = CheckpointSettings(tmp_path / folder, every_s=0.0)
        return Learner(
            open_data(clicks, schema), schema, training, progress=progress, checkpoint=place, baselines=False
        )

    with pytest.raises(Interrupted):
        learner("kept").learn(tmp_path / "resumed")
    before = len(reports)
    resumed = learner("kept").learn(tmp_path / "resumed")
    after = reports[before:]
    reports.clear()
    stop = 0
    whole = learner("own").learn(tmp_path / "whole")
    assert resumed.manifest.version == whole.manifest.version
    assert resumed.manifest.metrics == whole.manifest.metrics
    assert after == reports[-len(after) :]
    assert not list((tmp_path / "kept").iterdir())


@pytest.mark.long
def test_a_killed_process_goes_on_to_the_same_bundle(clicks: Path, tmp_path: Path) -> None:
    """kill -9 of `polyrec train` after its first checkpoint, and the same command again."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)

    def command(out: str, *more: str) -> list[str]:
        given = ["--data", str(clicks), "--schema", "trivago", "--recipe", str(recipe)]
        return [sys.executable, "-c", COMMAND, "train", *given, "--out", str(tmp_path / out), "--json", *more]

    kept = ("--checkpoint", str(tmp_path / "kept"))
    often = (*kept, "--every", "0.01s")
    killed = subprocess.Popen(
        command("resumed", *often), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    file, until = tmp_path / "kept" / "fit.safetensors", time.monotonic() + DEADLINE_S
    while not file.exists() and killed.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait(DEADLINE_S)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "resumed").exists()

    run = subprocess.run(command("resumed", *kept), capture_output=True, text=True, timeout=DEADLINE_S)
    assert "resumed after step" in run.stderr
    assert run.returncode == 0
    whole = subprocess.run(command("whole"), capture_output=True, text=True, timeout=DEADLINE_S)
    assert json.loads(run.stdout)["metrics"] == json.loads(whole.stdout)["metrics"]
    assert (
        load_bundle(tmp_path / "resumed").manifest.version == load_bundle(tmp_path / "whole").manifest.version
    )
