"""The profile: measured latency, memory and quality of every path on one machine.

`polyrec profile` writes it as a JSON file, which `polyrec plan` and the simulator read. A profile may also
describe another machine; its figures are then derived (origin `derived`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict, read_json, refuse_newer, validate_as, write_text
from polyrec.planner.devices import Machine
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import LaneKind, PlannedPath
from polyrec.planner.quality import Finite, QualityDifference, QualityMetric, differences_from_given
from polyrec.planner.tier_times import CutTimes

Count = Annotated[int, Field(ge=0)]
Real = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ProfileError(PolyrecError):
    """A profile is missing, malformed, or does not fit its purpose."""


class Point(Strict):
    """Time quantiles in seconds of `samples` batches of `rows` rows.

    fitted: whether the model was fitted to it.
    """

    rows: Annotated[int, Field(ge=1)]
    samples: Count
    p50_s: Real
    p90_s: Real
    p99_s: Real
    max_s: Real
    fitted: bool = True


class FitError(Strict):
    """Mean relative error of a latency model at rows that it was not fitted to."""

    median: Real
    tail: Real


class Memory(Strict):
    """Bytes of a path.

    tables: bytes of rows by table, which may be in tiers.
    fixed: bytes of decoders and dense net.
    peak: additional bytes while it executes the largest batch.
    """

    tables: dict[str, Count]
    fixed: Count
    peak: Count = 0

    @property
    def total(self) -> int:
        return sum(self.tables.values()) + self.fixed + self.peak


class PathProfile(Strict):
    """Latency, memory and quality of one path.

    latency, evicted: of a warm lane, and with CPU caches evicted between batches.
    quality, metrics: quality on test rows in the profile's metric with its 95% interval, and all metrics.
        They are the bundle's own test figures, unless `quality_from` says that they were measured on `data`
        with this very path, `given` by the user, or `assumed` (`note` has the basis).
    origin: whether the figures were measured on this machine or derived.
    bundle_version: version of the measured bundle.
    """

    path: PlannedPath
    representation: str
    quality: Finite
    interval: tuple[Finite, Finite] | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    memory: Memory
    startup_s: Real = 0.0
    latency: LatencyModel
    points: tuple[Point, ...] = ()
    evicted: tuple[Point, ...] = ()
    error: FitError | None = None
    origin: Literal["measured", "derived"] = "measured"
    quality_from: Literal["bundle", "data", "given", "assumed"] = "bundle"
    note: str = ""
    bundle_version: str | None = None

    @property
    def accuracy(self) -> float | None:
        """Share of test rows classified correctly at threshold 0.5, None if it was not measured."""
        return self.metrics.get("accuracy")


class Front(Strict):
    """Seconds that the server spends outside of lanes, per query and additionally per row."""

    query_s: Real
    row_s: Real


class Hop(Strict):
    """Round trip to a lane on another core without execution: median and 99th percentile in seconds."""

    median_s: Real
    tail_s: Real


BUSY = 0.05
"""Share of the time in which paths waited for a core above which a machine is called busy."""

NEWEST = 2
"""The newest version of profiles."""


class Profile(Strict):
    """The machine and its paths.

    metric, differences: metric of the paths' quality, and differences between all pairs of paths.
    front: None if it was not measured.
    hops: by kind of lane, as far as measured.
    cut_times: of paths measured with their rows in tiers.
    cpu_wait: share of the time for which paths on the CPU waited for a core that other work used; None
        without such paths.
    version: 2 since paths have a quality.
    """

    version: Literal[2] = 2
    machine: Machine
    paths: Annotated[tuple[PathProfile, ...], Field(min_length=1)]
    metric: QualityMetric = "information"
    differences: tuple[QualityDifference, ...] = ()
    front: Front | None = None
    hops: dict[LaneKind, Hop] = Field(default_factory=dict)
    cut_times: tuple[CutTimes, ...] = ()
    cpu_wait: float | None = None

    @property
    def is_of_busy_machine(self) -> bool:
        """Whether other work took more than BUSY of the core's time while paths on the CPU were measured."""
        return self.cpu_wait is not None and self.cpu_wait > BUSY


def load_profile(file: str | Path) -> Profile:
    """Reads a profile; bundle folders are relative to it. Raises ProfileError."""
    what = f"profile '{file}'"
    try:
        raw = read_json(Path(file), what, ProfileError)
    except FileNotFoundError:
        raise ProfileError(f"no profile '{file}'; make one: polyrec profile BUNDLE --out {file}") from None
    refuse_newer(raw, NEWEST, what, ProfileError, "profile again with this one")
    profile = validate_as(Profile, _upgraded(raw), what, ProfileError)
    beside = Path(file).parent
    paths = tuple(
        p.model_copy(update={"path": p.path.model_copy(update={"bundle": beside / p.path.bundle})})
        for p in profile.paths
    )
    return profile.model_copy(update={"paths": paths})


def _upgraded(raw: object) -> object:
    """Converts a profile of version 1 to version 2; leaves other content unchanged.

    In version 1, paths have an accuracy, and metrics under `quality`.
    """
    if not isinstance(raw, dict) or raw.get("version") != 1 or not isinstance(raw.get("paths"), list):
        return raw
    old = [path for path in raw["paths"] if isinstance(path, dict)]
    known = all("normalised_entropy" in (path.get("quality") or {}) for path in old)
    paths = []
    for path in raw["paths"]:
        if isinstance(path, dict) and "accuracy" in path:
            path = dict(path)
            metrics = {**(path.pop("quality", None) or {}), "accuracy": path.pop("accuracy")}
            entropy = metrics.get("normalised_entropy", 1.0)
            path |= {"quality": 1 - entropy if known else metrics["accuracy"], "metrics": metrics}
            path["quality_from"] = path.pop("accuracy_from", "bundle")
        paths.append(path)
    return raw | {"version": 2, "metric": "information" if known else "accuracy", "paths": paths}


def on_machine(profile: Profile, machine: Machine, named: str) -> Profile:
    """Returns the profile with a changed description of its machine (memories, lanes, links, prices).

    Keeps latencies, and cut times if the disk is the same. Raises ProfileError if `machine` is a different
    machine or lacks a device of a path.
    """
    if machine.name != profile.machine.name:
        raise ProfileError(
            f"the profile is of machine '{profile.machine.name}', '{named}' describes '{machine.name}': "
            "latencies do not carry over; profile there, or give the description the profile's name to ask "
            "what its other figures would change"
        )
    known = {d.name for d in machine.devices}
    for p in profile.paths:
        if p.path.device not in known:
            raise ProfileError(
                f"path '{p.path.name}' was profiled on device '{p.path.device}', which '{named}' does not "
                f"describe; it has {', '.join(sorted(known))}"
            )
    disks = {(m.disk_latency_s, m.disk_bandwidth) for m in (machine, profile.machine)}
    kept = profile.cut_times if len(disks) == 1 else ()
    return profile.model_copy(update={"machine": machine, "cut_times": kept})


def with_given_quality(profile: Profile, given: Mapping[str, float]) -> Profile:
    """Returns the profile with the qualities of some paths replaced by the operator's.

    Raises ProfileError for a path that is not in the profile.
    """
    if not given:
        return profile
    names = [p.path.name for p in profile.paths]
    for name in given:
        if name not in names:
            raise ProfileError(f"quality of path '{name}': the profile has {', '.join(names)}")
    paths = tuple(
        p
        if p.path.name not in given
        else p.model_copy(update={"quality": given[p.path.name], "interval": None, "quality_from": "given"})
        for p in profile.paths
    )
    differences = differences_from_given({p.path.name: p.quality for p in paths}, given, profile.differences)
    return profile.model_copy(update={"paths": paths, "differences": differences})


def save_profile(profile: Profile, file: str | Path) -> None:
    """Writes a profile; bundle folders are written as they are in the profile. Raises OSError."""
    write_text(Path(file), profile.model_dump_json(indent=2, exclude_none=True) + "\n")
