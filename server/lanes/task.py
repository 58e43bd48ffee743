"""What the worker of a process lane is told: which paths to open, and where to run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from models.files import Strict
from models.precision import DensePrecision
from models.runtimes import open_runtime
from models.runtimes.runtime import Runtime
from models.weights import open_weights
from server.lanes.warm import warm_up


class OpenPath(Strict):
    """One path. version: of the bundle that the server has checked; its ranks mean nothing to another."""

    name: str
    bundle: Path
    version: str
    runtime: Literal["torch", "onnx"]
    device: str
    precision: DensePrecision

    def open(self) -> Runtime:
        """Its runtime, warm. Raises BundleError, RuntimeUnavailable."""
        weights = open_weights(self.bundle, self.version)
        runtime = open_runtime(self.runtime, weights, self.device, self.precision)
        warm_up(runtime, weights.manifest.schema_)
        return runtime


class Task(Strict):
    """All paths of a lane; a batch names one by its position. cores: empty for any."""

    paths: tuple[OpenPath, ...]
    cores: tuple[int, ...] = ()

    def open(self) -> tuple[Runtime, ...]:
        return tuple(path.open() for path in self.paths)
