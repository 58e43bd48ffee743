"""One generation in service: the open paths, tiers and lanes of a plan, and the dispatcher that uses them.

server/app/opening.py opens it and server/app/engine.py owns it. It is immutable, so that a reload can swap it
in one assignment while the old one still answers its queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.encoder import Encoder
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan, PlannedPath
from polyrec.server.app.served_model import ServedModel
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.lanes.lane import Lane
from polyrec.server.live_quality.feature_drift import FeatureDrift
from polyrec.server.metrics.counting import EndpointMetrics
from polyrec.server.metrics.statistics import Statistics
from polyrec.server.tiers.plan_tiers import TierSet
from polyrec.server.tiers.update_store import left_behind

ENDPOINTS = ("predict", "rank", "infer")


@dataclass(frozen=True, slots=True, eq=False)
class OpenPath:
    """One open path.

    quality: in the plan's metric, None if unknown.
    accuracy: share of test rows classified correctly at threshold 0.5, None if unknown.
    latency: the initial latency model.
    """

    planned: PlannedPath
    bundle: Bundle
    encoder: Encoder
    quality: float | None
    accuracy: float | None
    latency: LatencyModel
    endpoints: dict[str, EndpointMetrics]
    header: tuple[bytes, bytes]

    @property
    def name(self) -> str:
        return self.planned.name


@dataclass(frozen=True, slots=True)
class LoadedPlan:
    """A plan with its open bundles, without paths and lanes; a rollback serves it again."""

    plan: Plan
    bundles: Mapping[Path, Bundle]


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """An open generation. The model's version is the version of the first path's bundle."""

    plan: Plan
    model: ServedModel
    paths: tuple[OpenPath, ...]
    lanes: tuple[Lane, ...]
    dispatcher: Dispatcher
    json_decoder: JsonDecoder
    oip_codec: OipCodec
    statistics: Statistics
    tiers: TierSet
    drifts: tuple[FeatureDrift, ...]

    @property
    def bundle(self) -> Bundle:
        return self.paths[0].bundle

    @property
    def version(self) -> str:
        return self.bundle.manifest.version

    @property
    def max_body_bytes(self) -> int:
        """Maximum request body, compressed or not: the plan's limit, or one derived from its maximum rows."""
        return self.json_decoder.body_limits.max_bytes

    @property
    def loaded_plan(self) -> LoadedPlan:
        """Returns what a rollback needs to serve this generation again after `close`."""
        whole = {path.planned.bundle: path.bundle.at_width(None) for path in self.paths}
        return LoadedPlan(self.plan, whole)

    def close(self) -> None:
        """Closes the lanes, then the tiers, and cancels waiting queries. May take seconds."""
        self.dispatcher.close()
        self.tiers.close()


def differences(old: Serving, new: Serving) -> list[str]:
    """Lists what changes with the generation: the model's name, request features, fewer paths, quality, and
    row updates that it lacks.
    """
    found = []
    called = [serving.bundle.manifest.name for serving in (old, new)]
    if called[0] != called[1]:
        found.append(f"model: {called[1]}, was {called[0]}")
    names = [
        {f.name for f in schema.dense} | {f.name for f in schema.categorical}
        for schema in (serving.bundle.manifest.schema_ for serving in (old, new))
    ]
    for what, features in (
        ("no longer allowed in requests", names[0] - names[1]),
        ("new in requests", names[1] - names[0]),
    ):
        if features:
            found.append(f"{what}: {', '.join(sorted(features))}")
    if len(new.paths) < len(old.paths):
        now, was = (", ".join(path.name for path in serving.paths) for serving in (new, old))
        found.append(f"fewer paths: {now}, were {was}")
    best = [max((p.quality for p in s.paths if p.quality is not None), default=None) for s in (old, new)]
    was, now = ("unknown" if quality is None else f"{quality:.4g}" for quality in best)
    if old.plan.metric == new.plan.metric and was != now:
        found.append(f"quality of the best path: {now}, was {was}")
    for path, rows in left_behind(old.tiers.changes, new.tiers.changes).items():
        found.append(f"row updates left behind: {rows:,} of path {path}")
    return found


def log_suffix(changes: Sequence[str]) -> str:
    """Returns `differences` as the end of a log line; empty without any."""
    return "".join(f"; {change}" for change in changes)
