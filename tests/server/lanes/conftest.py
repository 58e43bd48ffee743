"""Lanes of every kind over one small trained bundle, and batches for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import Batch
from polyrec.planner.plan import LaneKind, PlannedLane, PlannedPath
from polyrec.server.lanes.lane import Lane
from polyrec.server.lanes.opening import LaneOpening, Paths
from tests.models.random_batches import random_batch

MakeBatch = Callable[..., Batch]


@pytest.fixture(autouse=True)
def _workers() -> None:
    """Starts workers as everywhere outside tests: here their start is tested."""


@pytest.fixture(scope="session")
def paths(bundle: Bundle) -> Paths:
    """Two paths of one bundle: torch and onnx."""
    return [
        (PlannedPath(name=f"table-{runtime}@cpu", bundle=bundle.path, runtime=runtime), bundle)
        for runtime in ("torch", "onnx")
    ]


@pytest.fixture(scope="session")
def runtimes(paths: Paths) -> dict[str, Runtime]:
    """Probabilities from the paths without any lane."""
    return {path.name: open_runtime(path.runtime, bundle) for path, bundle in paths}


@pytest.fixture(scope="session")
def make_batch(bundle: Bundle) -> MakeBatch:
    """(seed, rows, contexts) -> a valid batch for the bundle."""
    table_rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}

    def make(seed: int, rows: int, contexts: int | None = None) -> Batch:
        random = np.random.default_rng(seed)
        return random_batch(random, bundle.manifest.schema_, table_rows, rows, contexts)

    return make


@pytest.fixture(scope="module", params=["inline", "thread", "process"])
def lane(request: pytest.FixtureRequest, paths: Paths) -> Iterator[Lane]:
    """A lane of each kind, open for a module's tests."""
    kind: LaneKind = request.param
    lane = LaneOpening(PlannedLane(name="lane", kind=kind), paths, lambda _: None).open()
    yield lane
    lane.close()
