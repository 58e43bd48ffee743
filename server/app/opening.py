"""Opens one generation: a plan's paths, tiers and lanes, and the dispatcher that uses them.

All bundles of a plan must have the same schema and stable ids. Bundles whose vocabularies are also in the
same popularity order share one encoder. The latency of a path that was not profiled is measured roughly.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.bundle.manifest import VOCABULARY
from polyrec.models.errors import BundleError
from polyrec.models.memory import reports_refused_memory
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F64, I64, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.shared_ids import obstacle
from polyrec.models.tiers.stack import TierStack
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan, PlanError, PlannedPath
from polyrec.planner.quality import routing_values
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.server.app.served_model import served_model
from polyrec.server.app.serving import ENDPOINTS, OpenPath, Serving
from polyrec.server.clock import clock
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.dispatch.executor import ExecutionPath
from polyrec.server.lanes.lane import Lane, OnDeath
from polyrec.server.lanes.opening import LaneOpening, open_lanes, open_path
from polyrec.server.live_quality.feature_drift import drifts_of
from polyrec.server.metrics.counting import Recorder
from polyrec.server.metrics.metrics import Metrics
from polyrec.server.metrics.statistics import Statistics
from polyrec.server.tiers.plan_tiers import TierSet, open_tier_set
from polyrec.server.tiers.update_store import UpdateStore

log = logging.getLogger("polyrec.serving")

MEASURED_ROWS = (1, 16, 128, 1024)
MEASURED_ROUNDS = 8
TAIL_OVER_MEDIAN = 1.25
"""Assumed when there is no profile. Profiles show 1.15 to 1.7; online corrections adjust it."""


def load_bundles(plan: Plan, loaded: Mapping[Path, Bundle]) -> dict[Path, Bundle]:
    """Loads the bundles of a plan's paths, by folder. loaded: those that are open. Raises BundleError."""
    bundles = dict(loaded)
    for planned in plan.paths:
        if planned.bundle not in bundles:
            try:
                bundles[planned.bundle] = load_bundle(planned.bundle)
            except BundleError as e:
                raise BundleError(
                    f"path '{planned.name}': {e}; a plan's bundles are relative to its own folder"
                ) from None
    return bundles


@reports_refused_memory("open the plan")
def open_serving(
    plan: Plan,
    metrics: Metrics,
    loaded: Mapping[Path, Bundle],
    update_store: UpdateStore,
    model_name: str | None = None,
    spare: bool = False,
) -> Serving:
    """Opens every path and lane of a plan; blocks.

    loaded: bundles that are open already, by folder.
    update_store: row updates since the server started, which apply to this generation too.
    model_name: the operator's name; None for the bundle's.
    spare: whether process lanes use only spare CPU time.
    Raises BundleError, RuntimeUnavailable, or PlanError if the bundles' schemas or ids differ.
    """
    import torch

    torch.set_num_threads(1)
    bundles = load_bundles(plan, loaded)
    encoders = _encoders([(p, bundles[p.bundle]) for p in plan.paths])
    named = {p.name: encoder for p, encoder in zip(plan.paths, encoders, strict=True)}
    tiers = open_tier_set(plan, bundles, named, metrics.record_move, update_store)
    try:
        serving = _open(plan, metrics, bundles, encoders, tiers, model_name, spare)
    except BaseException:
        tiers.close()
        raise
    tiers.begin()
    return serving


def _open(
    plan: Plan,
    metrics: Metrics,
    bundles: Mapping[Path, Bundle],
    encoders: Sequence[Encoder],
    tiers: TierSet,
    model_name: str | None,
    spare: bool,
) -> Serving:
    stacks = tiers.stacks
    runtimes = _runtimes(plan, bundles, stacks)
    qualities = _qualities(plan, bundles)
    paths = _open_paths(plan, metrics, bundles, encoders, runtimes, qualities)
    router = _router(plan, paths, routing_values(qualities, plan.differences))
    statistics = Statistics()
    counted = [metrics.lane_metrics(lane.name) for lane in plan.all_lanes()]
    drifts = drifts_of([p.bundle for p in paths])
    observer = Recorder(
        counted,
        [metrics.path_metrics(p.name, p.encoder, _tier(p, tiers), counted, statistics) for p in paths],
        metrics.ticked,
        drifts,
    )

    def on_death(lane: Lane) -> None:
        dispatcher.lane_died(lane)

    openings = _lane_openings(plan, paths, runtimes, stacks, on_death, spare)
    manifest = paths[0].bundle.manifest
    schema = manifest.schema_
    decoder = JsonDecoder(schema, plan.limits)
    codec = OipCodec(schema, plan.limits, encoders[0].vocabularies)
    # opened last: nothing after this can fail, so nothing has to close them
    lanes = open_lanes(openings)
    for stack in tiers.distinct:
        stack.reset_figures()  # the lookups until here are of no requests
    dispatcher = Dispatcher(
        router,
        lanes,
        [ExecutionPath(p.name, p.encoder, stacks.get(p.name)) for p in paths],
        observer,
        tiers.prefetcher,
        tiers.cold_rows,
    )
    return Serving(
        plan,
        served_model(manifest.name, manifest.version, model_name),
        paths,
        lanes,
        dispatcher,
        decoder,
        codec,
        statistics,
        tiers,
        tuple(dict.fromkeys(drifts)),
    )


def _open_paths(
    plan: Plan,
    metrics: Metrics,
    bundles: Mapping[Path, Bundle],
    encoders: Sequence[Encoder],
    runtimes: Mapping[str, Runtime],
    qualities: Mapping[str, float | None],
) -> tuple[OpenPath, ...]:
    """Opens the paths of a plan, and measures the latency of those that the plan has no latency for."""
    paths = []
    for planned, encoder in zip(plan.paths, encoders, strict=True):
        name, bundle = planned.name, bundles[planned.bundle].at_width(planned.width)
        quality = qualities[name]
        paths.append(
            OpenPath(
                planned,
                bundle,
                encoder,
                quality,
                _known(planned.accuracy, bundle, "accuracy"),
                planned.latency or measure(runtimes[name], encoder),
                {endpoint: metrics.endpoint_metrics(endpoint, name, quality) for endpoint in ENDPOINTS},
                (b"x-polyrec-path", name.encode()),
            )
        )
    return tuple(paths)


def _lane_openings(
    plan: Plan,
    paths: Sequence[OpenPath],
    runtimes: Mapping[str, Runtime],
    stacks: Mapping[str, TierStack],
    on_death: OnDeath,
    spare: bool,
) -> list[LaneOpening]:
    """Returns the arguments for opening each lane. on_death: called when a lane's process has ended."""
    unused = dict(runtimes)
    openings = []
    for lane in plan.all_lanes():
        here = [(p.planned, p.bundle) for p in paths if p.planned.device == lane.device]
        lane_runtimes: dict[str, Runtime] = {}
        if lane.kind != "process":
            # a runtime belongs to one lane, so the first lane takes the runtimes that are already open
            lane_runtimes = {p.name: unused.pop(p.name) for p, _ in here if p.name in unused}
        openings.append(LaneOpening(lane, here, on_death, lane_runtimes, stacks, spare))
        log.info("lane %s: %s on %s", lane.name, lane.kind, lane.device)
    return openings


def _runtimes(
    plan: Plan, bundles: Mapping[Path, Bundle], stacks: Mapping[str, TierStack]
) -> dict[str, Runtime]:
    """Opens runtimes for paths that execute in this process or whose latency must be measured."""
    runtimes = {}
    for planned in plan.paths:
        inside = any(lane.device == planned.device and lane.kind != "process" for lane in plan.all_lanes())
        if inside or planned.latency is None:
            bundle = bundles[planned.bundle].at_width(planned.width)
            runtimes[planned.name] = open_path(planned, bundle, stacks.get(planned.name))
    return runtimes


def _router(plan: Plan, paths: Sequence[OpenPath], values: Mapping[str, float]) -> Router:
    specs = [
        PathSpec(p.name, p.planned.device, p.quality or 0.0, p.latency, values[p.name], p.accuracy)
        for p in paths
    ]
    lanes = [LaneSpec(lane.name, lane.device, lane.kind) for lane in plan.all_lanes()]
    return Router(RouterState(specs, lanes, plan.routing, plan.limits, clock()))


def _tier(path: OpenPath, tiers: TierSet) -> str | None:
    """Returns the memory that holds all rows of a path, None if they are in tiers."""
    if path.name in tiers.stacks:
        return None
    return "host" if path.planned.device == "cpu" else "device"


def _qualities(plan: Plan, bundles: Mapping[Path, Bundle]) -> dict[str, float | None]:
    """Returns each path's quality from the plan, or else from its bundle's test; None if neither has it."""
    return {p.name: _known(p.quality, bundles[p.bundle].at_width(p.width), plan.metric) for p in plan.paths}


def _known(planned: float | None, bundle: Bundle, metric: str) -> float | None:
    """Returns a path's figure from the plan, or else from its bundle's test."""
    return bundle.test_metrics.get(metric) if planned is None else planned


def measure(runtime: Runtime, encoder: Encoder) -> LatencyModel:
    """Measures a rough latency model with uniform random ids; takes a fraction of a second."""
    random = np.random.default_rng(0)
    took_s = np.empty((MEASURED_ROUNDS, len(MEASURED_ROWS)))
    for of_round in took_s:
        for i, rows in enumerate(MEASURED_ROWS):
            batch = random_batch(encoder, rows, random)
            start = clock()
            runtime.predict(batch)
            of_round[i] = clock() - start
    return model_of_shortest(took_s)


def model_of_shortest(took_s: F64) -> LatencyModel:
    """Returns the latency model of the shortest time at each batch size.

    Other work on the machine slows down some sizes at random. Online corrections learn how slow a path is but
    not at which size, so such noise would decide batch sizes until the next start.

    took_s: float64 [rounds, len(MEASURED_ROWS)].
    """
    medians = np.maximum.accumulate(np.maximum(took_s.min(axis=0), 1e-6))
    tails = TAIL_OVER_MEDIAN * medians
    return LatencyModel(rows=MEASURED_ROWS, median_s=tuple(medians.tolist()), tail_s=tuple(tails.tolist()))


def random_batch(encoder: Encoder, rows: int, random: np.random.Generator) -> Batch:
    """Returns a plain batch of uniformly random ids, with one value per multi-valued feature."""
    schema = encoder.schema

    def ids(feature_rows: int) -> I64:
        return random.integers(0, feature_rows, rows)

    singles = [ids(max(1, encoder.vocabulary(f).size)) for f in schema.singles]
    sparse = np.stack(singles, 1) if singles else np.zeros((rows, 0), np.int64)
    bags = {
        f.name: (ids(max(1, encoder.vocabulary(f).size)), np.ones(rows, np.int64))
        for f in schema.categorical
        if f.multi
    }
    return encoder.from_ids(np.zeros((rows, len(schema.dense)), np.float32), sparse, bags)


def _encoders(opened: Sequence[tuple[PlannedPath, Bundle]]) -> list[Encoder]:
    """Returns an encoder for each path. Raises PlanError if schemas or stable ids differ between bundles."""
    found = obstacle({path.name: bundle.encoder for path, bundle in opened})
    if found is not None:
        raise PlanError(f"the bundles of paths {found}")
    by_digest: dict[str, Encoder] = {}
    encoders: list[Encoder] = []
    for _, bundle in opened:
        digest = f"{bundle.manifest.files[VOCABULARY].sha256} {bundle.manifest.standards}"
        if digest not in by_digest:
            bundle.encoder.prepare()
            by_digest[digest] = bundle.encoder
        encoders.append(by_digest[digest])
    return encoders
