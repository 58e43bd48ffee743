"""What the worker of a process lane is told: which paths to open, and where to run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from polyrec.models.bundle.held_files import HeldFiles
from polyrec.models.bundle.weights import open_weights
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.files import Strict
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.server.lanes.warm_up import warm_up


class OpenPath(Strict):
    """One path.

    folder: of the bundle, for messages. files: descriptors of its files, which the worker inherits, so that
    it reads what the server has checked, whatever stands in the folder by now. version: of the bundle.
    """

    name: str
    folder: Path
    files: dict[str, int]
    version: str
    runtime: Literal["torch", "onnx"]
    device: str
    precision: DensePrecision

    def open(self, files: HeldFiles) -> Runtime:
        """Its runtime, warm. Raises BundleError, RuntimeUnavailable."""
        weights = open_weights(files, self.version)
        runtime = open_runtime(self.runtime, weights, self.device, self.precision)
        warm_up(runtime, weights.manifest.schema_)
        return runtime


class Task(Strict):
    """All paths of a lane; a batch names one by its position. cores: empty for any."""

    paths: tuple[OpenPath, ...]
    cores: tuple[int, ...] = ()

    @property
    def descriptors(self) -> frozenset[int]:
        """What the worker has to inherit."""
        return frozenset(fd for path in self.paths for fd in path.files.values())

    def open(self) -> tuple[Runtime, ...]:
        """The runtime of every path, in the worker. Raises BundleError, RuntimeUnavailable."""
        held: dict[frozenset[int], HeldFiles] = {}
        runtimes = []
        for path in self.paths:
            own = frozenset(path.files.values())
            if own not in held:  # paths of one bundle share its descriptors, which one object closes
                held[own] = HeldFiles(path.folder, path.files)
            runtimes.append(path.open(held[own]))
        return tuple(runtimes)
