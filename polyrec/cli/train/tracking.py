"""Records a training in TensorBoard and MLflow: loss, rows/s, learning rate, validation, test metrics.

It receives every step, and writes means over `every` steps under the training's name, such as `fit/loss`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from polyrec.models.errors import PolyrecError
from polyrec.models.training.trainer import Check, Progress, StepReport

EVERY_STEPS = 50
EXPERIMENT = "polyrec"


class Tracker(Protocol):
    """A destination of records."""

    def values(self, step: int, found: Mapping[str, float]) -> None:
        """Writes the values of a step."""
        ...

    def parameters(self, found: Mapping[str, Any]) -> None:
        """Writes the parameters of the training."""
        ...

    def close(self, failed: bool) -> None:
        """Ends the record."""
        ...


class TensorBoardTracker:
    """Writes event files to a folder, for `tensorboard --logdir`. Raises PolyrecError if it is not
    installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise PolyrecError(
                "--tensorboard needs tensorboard, not installed here: pip install 'polyrec[tensorboard]'"
            ) from None
        self._writer: Any = SummaryWriter(str(folder))

    def values(self, step: int, found: Mapping[str, float]) -> None:
        for name, value in found.items():
            self._writer.add_scalar(name, value, step)

    def parameters(self, found: Mapping[str, Any]) -> None:
        lines = (f"| {name} | {value} |" for name, value in found.items())
        self._writer.add_text("parameters", "\n".join(("| name | value |", "|---|---|", *lines)))

    def close(self, failed: bool) -> None:
        self._writer.close()


class MlflowTracker:
    """Writes a run of the experiment `polyrec` to a tracking URI.

    Raises PolyrecError if mlflow is not installed or no server answers.
    """

    def __init__(self, uri: str, name: str) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ImportError:
            raise PolyrecError(
                "--mlflow needs mlflow, not installed here: pip install 'polyrec[mlflow]'"
            ) from None
        from mlflow.exceptions import MlflowException

        self._metric, self._param = Metric, Param
        try:
            self._client: Any = MlflowClient(uri)
            found = self._client.get_experiment_by_name(EXPERIMENT)
            experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
            self._run = self._client.create_run(experiment, run_name=name).info.run_id
        except MlflowException as e:
            raise PolyrecError(f"--mlflow: {' '.join(str(e).split())}") from None

    def values(self, step: int, found: Mapping[str, float]) -> None:
        now = round(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in found.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def parameters(self, found: Mapping[str, Any]) -> None:
        self._client.log_batch(self._run, params=[self._param(k, str(v)) for k, v in found.items()])

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class TrainingRecord:
    """Writes steps and results to trackers. Call it with each step."""

    def __init__(
        self,
        trackers: Sequence[Tracker],
        every: int = EVERY_STEPS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trackers, self._every, self._clock = trackers, every, clock
        self._training = ""
        self._check: Check | None = None
        self._begin()

    def _begin(self) -> None:
        self._since, self._rows, self._losses = self._clock(), 0, list[float]()

    def __call__(self, report: StepReport) -> None:
        name = report.run
        if name != self._training:
            self._training, self._check = name, None
            self._begin()
        self._rows += report.rows
        self._losses.append(report.loss)
        found: dict[str, float] = {}
        if len(self._losses) >= self._every or report.step == report.total:
            found[f"{name}/loss"] = sum(self._losses) / len(self._losses)
            found[f"{name}/learning_rate"] = report.learning_rate
            seconds = self._clock() - self._since
            if seconds > 0:
                found[f"{name}/rows_per_second"] = self._rows / seconds
            self._begin()
        if report.check is not None and report.check is not self._check:
            self._check = report.check
            found["validation/log_loss"] = report.check.log_loss
            found["validation/auc"] = report.check.auc
        if found:
            for tracker in self._trackers:
                tracker.values(report.step, found)

    def parameters(self, found: Mapping[str, Any]) -> None:
        """Writes the parameters of the training."""
        for tracker in self._trackers:
            tracker.parameters(found)

    def result(self, metrics: Mapping[str, float | int | None], step: int) -> None:
        """Writes the metrics on the test rows."""
        found = {f"test/{name}": float(value) for name, value in metrics.items() if value is not None}
        for tracker in self._trackers:
            tracker.values(step, found)


def call_both(first: Progress, second: Progress) -> Progress:
    """Returns a callback that calls both callbacks."""

    def call(report: StepReport) -> None:
        first(report)
        second(report)

    return call


@contextmanager
def record_of(tensorboard: Path | None, mlflow: str | None, name: str) -> Iterator[TrainingRecord]:
    """Opens the record of a training; without trackers it writes nothing."""
    trackers: list[Tracker] = []
    failed = True
    try:
        if tensorboard is not None:
            trackers.append(TensorBoardTracker(tensorboard))
        if mlflow is not None:
            trackers.append(MlflowTracker(mlflow, name))
        yield TrainingRecord(trackers)
        failed = False
    finally:
        for tracker in trackers:
            tracker.close(failed)
