"""The task of a process lane's worker: the paths to open, and the cores to run on."""

from __future__ import annotations

from pathlib import Path

from polyrec.models.bundle.held_files import HeldFiles
from polyrec.models.bundle.weights import BundleWeights, open_weights
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.files import Strict
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.registry import RuntimeName
from polyrec.models.runtimes.runtime import Runtime
from polyrec.server.lanes.warm_up import warm_up


class PathTask(Strict):
    """One path.

    folder: the bundle's, for messages. files: descriptors of its files, which the worker inherits, so that it
    reads what the server has verified even if the folder has changed since. version: the bundle's.
    """

    name: str
    folder: Path
    files: dict[str, int]
    version: str
    runtime: RuntimeName
    device: str
    precision: DensePrecision
    width: int | None = None

    def open(self, weights: BundleWeights) -> Runtime:
        """Opens and warms up its runtime. Raises BundleError or RuntimeUnavailable."""
        runtime = open_runtime(self.runtime, weights.at_width(self.width), self.device, self.precision)
        warm_up(runtime, weights.manifest.schema_)
        return runtime


class WorkerTask(Strict):
    """All paths of a lane, which a batch names by index. cores: empty for any."""

    paths: tuple[PathTask, ...]
    cores: tuple[int, ...] = ()

    @property
    def descriptors(self) -> frozenset[int]:
        """The file descriptors that the worker inherits."""
        return frozenset(fd for path in self.paths for fd in path.files.values())

    def open(self) -> tuple[Runtime, ...]:
        """Opens the runtime of every path, in the worker. Raises BundleError or RuntimeUnavailable."""
        opened: dict[frozenset[int], BundleWeights] = {}
        runtimes = []
        for path in self.paths:
            descriptors = frozenset(path.files.values())
            if descriptors not in opened:  # paths of one bundle share its descriptors and its mapped rows
                files = HeldFiles(path.folder, path.files)
                opened[descriptors] = open_weights(files, path.version)
            runtimes.append(path.open(opened[descriptors]))
        return tuple(runtimes)
