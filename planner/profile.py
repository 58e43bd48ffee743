"""The profile: what every path costs and how good it is, as measured on one machine.

Written by `polyrec profile`, read by `polyrec plan` and the simulator; a readable JSON file. A profile
may also describe a machine that one does not have: then its figures are derived, and it says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict, read_json, validate_as, write_text
from polyrec.planner.devices import Machine
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import LaneKind, PlannedPath

Count = Annotated[int, Field(ge=0)]
Real = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ProfileError(PolyrecError):
    """A profile that is missing, malformed, or does not fit what is asked of it."""


class Point(Strict):
    """Batches of `rows` rows, `samples` of them: seconds at quantiles. fitted: the model saw it."""

    rows: Annotated[int, Field(ge=1)]
    samples: Count
    p50_s: Real
    p90_s: Real
    p99_s: Real
    max_s: Real
    fitted: bool = True


class FitError(Strict):
    """Relative error of a latency model at rows that it was not fitted to, the mean over those rows."""

    median: Real
    tail: Real


class Memory(Strict):
    """Bytes that a path needs. tables: rows by table, in accesses' favor movable between tiers;
    fixed: decoders and dense net; peak: beside both, while it executes the largest batch."""

    tables: dict[str, Count]
    fixed: Count
    peak: Count = 0

    @property
    def total(self) -> int:
        return sum(self.tables.values()) + self.fixed + self.peak


class PathProfile(Strict):
    """One path: how fast, how large, how good.

    latency: of a lane that is warm; evicted: with the caches emptied between batches. accuracy and
    quality: the bundle's own test figures, unless `accuracy_from` says that they were measured on `data`
    with this very path, or `assumed` (`note` says from what). origin: whether the figures are of this
    machine. bundle_version: of the bundle that was measured.
    """

    path: PlannedPath
    representation: str
    accuracy: Annotated[float, Field(ge=0, le=1)]
    quality: dict[str, float] = Field(default_factory=dict)
    memory: Memory
    startup_s: Real = 0.0
    latency: LatencyModel
    points: tuple[Point, ...] = ()
    evicted: tuple[Point, ...] = ()
    error: FitError | None = None
    origin: Literal["measured", "derived"] = "measured"
    accuracy_from: Literal["bundle", "data", "assumed"] = "bundle"
    note: str = ""
    bundle_version: str | None = None


class Front(Strict):
    """What the server spends beside a lane: seconds a query, and for each of its rows."""

    query_s: Real
    row_s: Real


class Hop(Strict):
    """Seconds to a lane on another core and back, beside execution: median and 99th percentile."""

    median_s: Real
    tail_s: Real


class Profile(Strict):
    """The machine and its paths. front: None if it was not measured. hops: by kind of lane; one that is
    missing was not.
    """

    version: Literal[1] = 1
    machine: Machine
    paths: Annotated[tuple[PathProfile, ...], Field(min_length=1)]
    front: Front | None = None
    hops: dict[LaneKind, Hop] = Field(default_factory=dict)


def load_profile(file: str | Path) -> Profile:
    """Reads a profile; bundles are relative to it. Raises ProfileError, in one line."""
    what = f"profile '{file}'"
    try:
        raw = read_json(Path(file), what, ProfileError)
    except FileNotFoundError:
        raise ProfileError(f"no profile '{file}'; make one: polyrec profile BUNDLE --out {file}") from None
    profile = validate_as(Profile, raw, what, ProfileError)
    beside = Path(file).parent
    paths = tuple(
        p.model_copy(update={"path": p.path.model_copy(update={"bundle": beside / p.path.bundle})})
        for p in profile.paths
    )
    return profile.model_copy(update={"paths": paths})


def on_machine(profile: Profile, machine: Machine, named: str) -> Profile:
    """The profile with another description of its machine: other memories, lanes, links, prices. Its
    latencies stay. Raises ProfileError: it describes another machine, or lacks a device of a path."""
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
    return profile.model_copy(update={"machine": machine})


def save_profile(profile: Profile, file: str | Path) -> None:
    """Writes a profile that `load_profile` reads back; bundles are named as the profile names them.

    Raises OSError.
    """
    write_text(Path(file), profile.model_dump_json(indent=2, exclude_none=True) + "\n")
