"""The task of a process lane's worker, which lists the paths to open and the cores to run on.

The server writes it as JSON into the mailbox; the worker reads it at its start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from polyrec.models.bundle.held_files import HeldFiles
from polyrec.models.bundle.weights import BundleWeights, open_weights
from polyrec.models.dlrm.precision import DensePrecision, Precision
from polyrec.models.files import Strict
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.registry import RuntimeName
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Slab
from polyrec.server.lanes.warm_up import warm_up


class SlabTask(Strict):
    """The server's shared slab with a path's tiers. fd: its descriptor, which the worker inherits."""

    fd: int
    width: int
    precision: Precision
    rows: int
    pages: int
    page_bytes: int

    @classmethod
    def from_slab(cls, slab: Slab) -> Self:
        """Describes a shared slab."""
        assert slab.fd is not None
        form = slab.row_format
        return cls(
            fd=slab.fd,
            width=form.width,
            precision=form.precision,
            rows=slab.rows,
            pages=slab.pages,
            page_bytes=slab.page_bytes,
        )

    def open(self) -> Slab:
        """Maps the slab; called in the worker."""
        row_format = RowFormat(self.width, self.precision)
        return Slab(row_format, self.rows, self.pages, self.page_bytes, given=self.fd)


class PathTask(Strict):
    """One path.

    folder: the bundle's folder, used in messages only.
    files: descriptors of the bundle's files, which the worker inherits. So it reads the files that the server
        verified even if the folder has changed since.
    version: the bundle's version.
    slab: the slab with the path's tiers, None if all rows are read from the bundle.
    """

    name: str
    folder: Path
    files: dict[str, int]
    version: str
    runtime: RuntimeName
    device: str
    precision: DensePrecision
    width: int | None = None
    slab: SlabTask | None = None

    def open(self, weights: BundleWeights, slab: Slab | None) -> Runtime:
        """Opens and warms up the path's runtime. Raises BundleError or RuntimeUnavailable."""
        runtime = open_runtime(self.runtime, weights.at_width(self.width), self.device, self.precision, slab)
        warm_up(runtime, weights.manifest.schema_)
        return runtime


class WorkerTask(Strict):
    """All paths of a lane. Batches refer to a path by its index here.

    cores: CPU cores to run on, empty for any.
    spare: whether to use only spare CPU time (server/priority.py).
    """

    paths: tuple[PathTask, ...]
    cores: tuple[int, ...] = ()
    spare: bool = False

    @property
    def descriptors(self) -> frozenset[int]:
        """Returns the file descriptors that the worker inherits."""
        files = frozenset(fd for path in self.paths for fd in path.files.values())
        return files | {path.slab.fd for path in self.paths if path.slab is not None}

    def open(self) -> tuple[Runtime, ...]:
        """Opens the runtime of every path; called in the worker. Raises BundleError or RuntimeUnavailable."""
        opened: dict[frozenset[int], BundleWeights] = {}
        slabs: dict[int, Slab] = {}
        runtimes = []
        for path in self.paths:
            descriptors = frozenset(path.files.values())
            if descriptors not in opened:  # paths of one bundle share descriptors and mapped rows
                files = HeldFiles(path.folder, path.files)
                opened[descriptors] = open_weights(files, path.version)
            slab = None
            if path.slab is not None:
                if path.slab.fd not in slabs:  # paths of one bundle share the slab
                    slabs[path.slab.fd] = path.slab.open()
                slab = slabs[path.slab.fd]
            runtimes.append(path.open(opened[descriptors], slab))
        return tuple(runtimes)
