from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from polyrec.cli.main import main
from polyrec.cli.train.tracking import TrainingRecord
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.training.trainer import REFIT, Check, StepReport

SMALL = """{architecture: {width: 4, bottom: [8], top: [8], interaction: cat},
recipe: {epochs: 1, batch_rows: 64, checks_per_epoch: 2, refit: true}}"""


class Listed:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.found: list[tuple[int, dict[str, float]]] = []

    def values(self, step: int, found: Mapping[str, float]) -> None:
        self.found.append((step, dict(found)))

    def parameters(self, found: Mapping[str, Any]) -> None: ...

    def close(self, failed: bool) -> None: ...


def test_means_of_steps_and_each_check_once_are_written() -> None:
    kept = Listed()
    record = TrainingRecord([kept], every=2, clock=itertools.count().__next__)
    check = Check(2, 0.5, 0.3, 0.25, 0.75)
    for step, seen in ((1, None), (2, check), (3, check)):
        record(StepReport(step, 3, 10, 0.1 * step, seen, 0.01))
    record(StepReport(1, 1, 8, 0.5, None, 0.02, REFIT))
    record.result({"auc": 0.8, "mrr": None}, 3)
    steps = [step for step, _ in kept.found]
    assert steps == [2, 3, 1, 3]
    assert kept.found[0][1] == {
        "fit/loss": pytest.approx(0.15),
        "fit/learning_rate": 0.01,
        "fit/rows_per_second": pytest.approx(20 / 1),
        "validation/log_loss": 0.25,
        "validation/auc": 0.75,
    }
    assert "validation/auc" not in kept.found[1][1]
    assert kept.found[2][1]["refit/loss"] == 0.5
    assert kept.found[3][1] == {"test/auc": 0.8}


def train(monkeypatch: pytest.MonkeyPatch, clicks: Path, folder: Path, *more: object) -> int:
    recipe = folder / "small.yaml"
    recipe.write_text(SMALL)
    given = ("--data", clicks, "--schema", "trivago", "--recipe", recipe, "--out", folder / "table", *more)
    monkeypatch.setattr("sys.argv", ["polyrec", "train", *map(str, given)])
    return main()


def test_tensorboard_shows_a_training(clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train(monkeypatch, clicks, tmp_path, "--tensorboard", tmp_path / "events") == 0
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    of_training = {f"{t}/{n}" for t in ("fit", "refit") for n in ("loss", "learning_rate", "rows_per_second")}
    assert of_training | {"validation/log_loss", "validation/auc", "test/log_loss"} <= tags
    losses = [event.value for event in events.Scalars("fit/loss")]
    assert losses
    assert all(map(math.isfinite, losses))
    (test,) = events.Scalars("test/auc")
    assert test.value == pytest.approx(load_bundle(tmp_path / "table").test_metrics["auc"])


def test_mlflow_keeps_a_run(clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is an extra that `make setup` leaves out")
    # a server and a database are not part of mlflow-skinny
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()
    assert train(monkeypatch, clicks, tmp_path, "--mlflow", uri) == 0
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("polyrec")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "table"
    assert run.data.params["epochs"] == "1"
    assert {"fit/loss", "refit/rows_per_second", "validation/auc", "test/log_loss"} <= run.data.metrics.keys()


def test_a_missing_extra_is_named(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert train(monkeypatch, clicks, tmp_path, "--mlflow", "http://127.0.0.1:1") != 0
    assert "pip install 'polyrec[mlflow]'" in capsys.readouterr().err
