"""The engine: everything behind the front, assembled from a plan.

A plan goes in; `load` opens its bundles, their runtimes and lanes, and from then on `serving` is what
answers. The front (HTTP, later gRPC) holds one engine and asks it for the path to use. What belongs
to one loaded model is one immutable `Serving`, so that a reload replaces it in one assignment.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from models.batch import Batch
from models.bundle import Bundle, code_version, load_bundle
from models.encoder import Encoder
from models.runtimes import open_runtime
from models.runtimes.runtime import Runtime
from planner.plan import Limits, Plan, PlannedPath
from server.decode import Decoder
from server.driver import Kind, open_driver
from server.errors import NotReady
from server.lane import Executed, Lane
from server.metrics import EndpointMetrics, LaneMetrics, Metrics
from server.oip_codec import OipCodec
from server.statistics import Statistics

log = logging.getLogger("polyrec.engine")

NO_PATH = "none"
STILL_LOADING = "the server is still loading; ask /readyz"
NOTHING: Mapping[Path, Bundle] = {}
ENDPOINTS = ("predict", "rank", "infer")


class State(Enum):
    """Where the server stands in its life; only `READY` says ready to a load balancer."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class LaneObserver:
    """Tells a lane's batches to the metrics and to the statistics."""

    metrics: LaneMetrics
    statistics: Statistics

    def batch_executed(self, executed: Executed, queries: int) -> None:
        self.metrics.batch_executed(executed, queries)
        self.statistics.executed(executed.batch.rows, executed.took_s)


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """One open path: what reads its requests, what executes them, and what is counted."""

    path: PlannedPath
    bundle: Bundle
    decoder: Decoder
    codec: OipCodec
    runtime: Runtime
    lane: Lane
    statistics: Statistics
    endpoints: dict[str, EndpointMetrics]
    header: tuple[bytes, bytes]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def version(self) -> str:
        return self.bundle.manifest.version


class Engine:
    """The paths of one plan, ready to answer once loaded.

    driver: where batches execute; by default in the event loop for a CPU, in a thread for the rest.
    """

    def __init__(self, driver: Kind | None = None) -> None:
        self.metrics = Metrics()
        self.state = State.LOADING
        self.default_budget_s = 0.0
        self.without_path = {e: self.metrics.outcomes(e, NO_PATH) for e in ENDPOINTS}
        self._driver = driver
        self._plan: Plan | None = None
        self._serving: tuple[Serving, ...] = ()

    def load(self, plan: Plan, loaded: Mapping[Path, Bundle] = NOTHING) -> None:
        """Opens every path of the plan; blocks. loaded: bundles that are open already.

        Raises BundleError, RuntimeUnavailable; what was served before then still is.
        """
        import torch

        torch.set_num_threads(1)
        serving = tuple(self._open(path, plan.limits, loaded.get(path.bundle)) for path in plan.paths)
        first = serving[0]
        manifest = first.bundle.manifest
        self.metrics.build(code_version(), manifest.name, manifest.version, first.runtime.name)
        self._plan = plan
        self.default_budget_s = plan.default_budget_ms / 1e3
        self._serving = serving
        if self.state is State.LOADING:
            self.enter(State.READY)

    @property
    def plan(self) -> Plan:
        """The plan that is followed. Raises NotReady before there is one."""
        if self._plan is None:
            raise NotReady(STILL_LOADING)
        return self._plan

    def enter(self, state: State) -> None:
        """Moves on to another state of life."""
        self.state = state
        self.metrics.ready(state is State.READY)

    def choose(self) -> Serving:
        """The path for the next query. One path so far: the routing policy belongs here."""
        if not self._serving:
            raise NotReady(STILL_LOADING)
        return self._serving[0]

    @property
    def serving(self) -> tuple[Serving, ...]:
        return self._serving

    def close(self) -> None:
        """Ends every lane; nothing is answered afterwards."""
        for serving in self._serving:
            serving.lane.close()
        self._serving = ()

    def _open(self, path: PlannedPath, limits: Limits, bundle: Bundle | None) -> Serving:
        bundle = bundle or load_bundle(path.bundle)
        bundle.encoder.prepare()
        runtime = open_runtime(path.runtime, bundle, path.device, path.precision)
        on_host = runtime.device == "cpu"
        kind: Kind = self._driver or ("inline" if on_host else "thread")
        warm_up(runtime, bundle.encoder)
        statistics = Statistics()
        tier = "host" if on_host else "device"
        observer = LaneObserver(self.metrics.lane(path.name, bundle.encoder, tier), statistics)
        lane = Lane(bundle.encoder, runtime, limits, open_driver(kind, path.name), observer)
        self.metrics.watch_queue(path.name, lambda: lane.queued_rows)
        log.info("path %s: bundle %s, runtime %s, driver %s", path.name, path.bundle, runtime.name, kind)
        return Serving(
            path=path,
            bundle=bundle,
            decoder=Decoder(bundle.manifest.schema_, limits),
            codec=OipCodec(bundle.manifest.schema_, limits),
            runtime=runtime,
            lane=lane,
            statistics=statistics,
            endpoints={e: self.metrics.endpoint(e, path.name) for e in ENDPOINTS},
            header=(b"x-polyrec-path", path.name.encode()),
        )


def warm_up(runtime: Runtime, encoder: Encoder) -> None:
    """Executes a small and a larger batch of each kind, so that no client pays for first-time set-up."""
    schema = encoder.schema
    singles = sum(not f.multi for f in schema.categorical)
    for rows in (1, 64):
        nothing = np.empty(0, np.int64), np.zeros(rows, np.int64)
        bags = {f.name: nothing for f in schema.categorical if f.multi}
        dense = np.zeros((rows, len(schema.dense)), np.float32)
        plain = encoder.from_ids(dense, np.zeros((rows, singles), np.int64), bags)
        first = np.zeros(1, np.int64)
        ranking = Batch(plain.context.take(first), plain.candidate, np.zeros(rows, np.int64))
        for batch in (plain, ranking):
            runtime.predict(batch)
