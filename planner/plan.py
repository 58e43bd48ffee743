"""The plan: which paths a server opens, on which lanes they run, how queries are routed, and limits.

`load_plan` reads a JSON file, which `polyrec plan` writes, into a frozen, validated `Plan`. A path is a
representation on a device (`table@cpu`): a bundle, its runtime and device, and its measured latency and
quality. A lane is an executor on a device; all lanes of a device can execute all its paths. Bundle folders
are relative to the plan file, so that a plan and its bundles can be moved together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.errors import PolyrecError
from polyrec.models.files import (
    MAX_SERVED_BYTES,
    Strict,
    parse_json,
    read_json,
    refuse_newer,
    validate_as,
    write_text,
)
from polyrec.models.runtimes.registry import RuntimeName
from polyrec.planner.expected import Expected
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.placement import Placement
from polyrec.planner.quality import Finite, QualityDifference, QualityMetric

PathName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@:-]+$", max_length=64)]
Rows = Annotated[int, Field(ge=1)]
TabledRows = Annotated[int, Field(ge=1, le=2**20)]
"""Rows of a request or batch; limited since routing tabulates latency up to the maximum."""
MAX_BUDGET_MS = 3_600_000
"""Maximum latency budget: an hour."""
BudgetMs = Annotated[float, Field(gt=0, le=MAX_BUDGET_MS, allow_inf_nan=False)]
BUDGET_FACTOR = 10.0
MIN_CAP_MS = 10_000.0
"""Minimum of the default cap on budgets, which is ten default budgets. A query occupies its connection and
its place in the queue until its deadline, so the cap limits how long a backlog outlasts its cause."""
NEWEST = 3
"""Version of plan files that this code writes."""
MAX_PATHS = 256
"""Maximum paths, and lanes, of a plan; limited since every decision examines all of them."""
FrontSeconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
LEAST_WEIGHT, MAX_WEIGHT = 1e-9, 1e9
"""Range of a path's weight other than 0; values multiplied by others could underflow to 0 or overflow."""
Policy = Annotated[str, Field(pattern=r"^(priced|mprec|deeprecsys|static:.+)$")]
LaneKind = Literal["inline", "thread", "process"]


class PlanError(PolyrecError):
    """A plan file is missing, malformed or inconsistent."""


def _zero_or_in_range(weight: float) -> float:
    if weight and not LEAST_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(
            f"{weight:g} is neither 0, which disables a path, nor in [{LEAST_WEIGHT:g}, {MAX_WEIGHT:g}]"
        )
    return weight


PathWeight = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_zero_or_in_range)]


class Limits(Strict):
    """Limits on requests and queues.

    max_body_bytes: bytes of one request, as sent and after decompression (413 beyond). None derives it from
        max_request_rows and the bundle's schema (`server/codecs/body_limits.py`).
    max_request_rows: rows of one request (413 beyond).
    max_batch_rows: rows up to which waiting queries are merged; a larger query runs alone.
    max_queued_rows: rows that may wait (429 beyond), separately for queries with and without a priority; both
        together may have 1.1 times as many.
    max_budget_ms: longest latency budget; longer ones are capped. None for BUDGET_FACTOR times the default
        budget, at least MIN_CAP_MS.
    """

    max_body_bytes: Annotated[int, Field(ge=1)] | None = None
    max_request_rows: TabledRows = 4096
    max_batch_rows: TabledRows = 1024
    max_queued_rows: Rows = 16384
    max_budget_ms: BudgetMs | None = None

    @model_validator(mode="after")
    def _a_request_fits_the_queue(self) -> Limits:
        if self.max_queued_rows < self.max_request_rows:
            raise ValueError(
                f"max_queued_rows {self.max_queued_rows} is below max_request_rows "
                f"{self.max_request_rows}: the largest request could never be queued"
            )
        return self


class PlannedPath(Strict):
    """One path: `bundle` executed by `runtime` on `device`, with its dense net in a precision.

    width: one of the bundle's nested widths; None for the widest.
    quality: on test rows in the plan's metric; None for the bundle's own figure.
    accuracy: share of test rows classified correctly at threshold 0.5 (MP-Rec's measure); only reported.
    latency: of one batch on one lane of the device; None to measure it roughly when the server loads.
    """

    name: PathName
    bundle: Path
    runtime: RuntimeName
    device: str = "cpu"
    precision: DensePrecision = "fp32"
    width: Annotated[int, Field(ge=1)] | None = None
    quality: Finite | None = None
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    latency: LatencyModel | None = None


class PlannedLane(Strict):
    """One executor on a device, which runs every path of that device.

    kind: `inline` executes in the server's event loop, `thread` in a thread of the server, `process` in a
        process of its own, so that a crash affects only that lane.
    cores: CPU cores to pin a thread or process to.
    """

    name: PathName
    device: str = "cpu"
    kind: LaneKind = "inline"
    cores: tuple[Annotated[int, Field(ge=0, lt=2**16)], ...] = ()


class Routing(Strict):
    """Routing policy and its parameters.

    policy: `priced`, `mprec`, `deeprecsys` or `static:PATH`.
    weights: factors on paths' values in every decision, 1 by default; 0 disables a path. Others are from
        LEAST_WEIGHT to MAX_WEIGHT.
    query_s, row_s: seconds of the front (parsing, writing) per query and additionally per row.
    """

    policy: Policy = "priced"
    weights: dict[PathName, PathWeight] = Field(default_factory=dict)
    query_s: FrontSeconds = 0.0
    row_s: FrontSeconds = 0.0


class Plan(Strict):
    """A plan.

    version: 3 since paths have a quality. Versions 1 and 2 have only an accuracy and are read too; quality is
        then taken from the bundles.
    metric: metric of the paths' quality.
    differences: quality differences between two paths with intervals. Paths without a significant difference
        are worth the same (planner/quality.py).
    lanes: if empty, one lane for each device of a path, inline on the CPU and a thread elsewhere.
    placement: which tier holds which rows; None if every device holds all rows of its paths.
    expected: the planner's forecast, which the server ignores.
    """

    version: Literal[1, 2, 3] = 3
    paths: Annotated[tuple[PlannedPath, ...], Field(min_length=1, max_length=MAX_PATHS)]
    metric: QualityMetric = "information"
    differences: tuple[QualityDifference, ...] = ()
    lanes: Annotated[tuple[PlannedLane, ...], Field(max_length=MAX_PATHS)] = ()
    routing: Routing = Routing()
    default_budget_ms: BudgetMs = 100.0
    limits: Limits = Limits()
    placement: Placement | None = None
    expected: Expected | None = None

    @model_validator(mode="after")
    def _names_are_unique(self) -> Plan:
        for kind, planned in (("path", self.paths), ("lane", self.lanes)):
            names = [each.name for each in planned]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{kind} '{name}' is planned twice")
        return self

    @model_validator(mode="after")
    def _cap_is_not_below_default(self) -> Plan:
        cap = self.limits.max_budget_ms
        if cap is not None and cap < self.default_budget_ms:
            raise ValueError(
                f"max_budget_ms {cap:g} is below default_budget_ms {self.default_budget_ms:g}; "
                "raise the cap or lower the default"
            )
        return self

    @model_validator(mode="after")
    def _paths_have_lanes(self) -> Plan:
        devices = {path.device for path in self.paths}
        if self.lanes:
            served = {lane.device for lane in self.lanes}
            for path in self.paths:
                if path.device not in served:
                    raise ValueError(f"path '{path.name}' has no lane: none is on device '{path.device}'")
            for lane in self.lanes:
                if lane.device not in devices:
                    raise ValueError(f"lane '{lane.name}' has no path: none is on device '{lane.device}'")
        if sum(lane.kind == "inline" for lane in self.lanes) > 1:
            raise ValueError("two lanes are inline; an event loop executes one batch at a time")
        return self

    @model_validator(mode="after")
    def _routing_has_a_path(self) -> Plan:
        names = [path.name for path in self.paths]
        static = self.routing.policy.removeprefix("static:")
        for name in (*self.routing.weights, *([static] if static != self.routing.policy else [])):
            if name not in names:
                known = ", ".join(f"'{path.name}'" for path in self.paths)
                raise ValueError(f"routing names path '{name}', which is not planned; planned: {known}")
        routed = [p for p in self.paths if static in (self.routing.policy, p.name)]
        if not any(self.routing.weights.get(p.name, 1) for p in routed):
            named = ", ".join(f"'{p.name}'" for p in routed)
            raise ValueError(f"no path would answer: the weight of {named} is 0")
        return self

    @model_validator(mode="after")
    def _named_paths_are_planned(self) -> Plan:
        names = [path.name for path in self.paths]
        for d in self.differences:
            for name in (d.path, d.other):
                if name not in names:
                    raise ValueError(f"differences name path '{name}', which is not planned")
        for placed in self.placement.paths if self.placement else ():
            if placed.path not in names:
                raise ValueError(f"placement names path '{placed.path}', which is not planned")
        return self

    @property
    def in_tiers(self) -> bool:
        """Whether any path has rows outside its device's memory, which not every placement has."""
        devices = {path.name: path.device for path in self.paths}
        placed = self.placement.paths if self.placement else ()
        return any(one.needs_tiers(devices[one.path]) for one in placed)

    def max_budget_ms(self, default_budget_ms: float) -> float:
        """Returns the maximum latency budget of a request for a given default budget."""
        return self.limits.max_budget_ms or max(BUDGET_FACTOR * default_budget_ms, MIN_CAP_MS)

    def all_lanes(self) -> tuple[PlannedLane, ...]:
        """Returns the planned lanes, or if there are none, one per device."""
        if self.lanes:
            return self.lanes
        devices = dict.fromkeys(path.device for path in self.paths)
        return tuple(
            PlannedLane(name=device, device=device, kind="inline" if device == "cpu" else "thread")
            for device in devices
        )


def single_path_plan(
    bundle: Path,
    representation: str,
    runtime: str,
    device: str = "cpu",
    precision: DensePrecision = "fp32",
    width: int | None = None,
) -> Plan:
    """Creates the plan of `polyrec serve --bundle`: one bundle on one device with default limits.

    representation: including the width, as in `Bundle.name`. A dense precision other than fp32 is added to
        the path's name: `table.int8@cpu`, `table.w16.int8@cpu`.
    Raises PlanError if there is no such runtime.
    """
    name = f"{representation}{'' if precision == 'fp32' else f'.{precision}'}@{device}"
    path = {
        "name": name,
        "bundle": bundle,
        "runtime": runtime,
        "device": device,
        "precision": precision,
        "width": width,
    }
    return validate_as(Plan, {"paths": (path,)}, f"path '{name}'", PlanError)


def load_plan(file: str | Path) -> Plan:
    """Reads a plan file. Raises PlanError, whose message has the key and the reason."""
    what = f"plan '{file}'"
    try:
        raw = read_json(Path(file), what, PlanError, MAX_SERVED_BYTES)
    except FileNotFoundError:
        raise PlanError(f"no plan file '{file}'") from None
    plan = _validated(raw, what)
    beside = Path(file).parent
    paths = tuple(p.model_copy(update={"bundle": beside / p.bundle}) for p in plan.paths)
    placement = plan.placement
    if placement is not None:
        placement = placement.beside(beside)
    return plan.model_copy(update={"paths": paths, "placement": placement})


def parse_plan(content: bytes, what: str) -> Plan:
    """Parses a plan file's content; folders stay relative. what: names the file in messages.

    Raises PlanError.
    """
    return _validated(parse_json(content, what, PlanError), what)


def _validated(raw: dict[str, Any], what: str) -> Plan:
    if "machine" in raw:
        raise PlanError(f"{what}: it is a profile, of which `polyrec plan --profile FILE` makes a plan")
    refuse_newer(raw, NEWEST, what, PlanError, "plan again with this one")
    if raw.get("version") in (1, 2):
        raw.pop("expected", None)  # in correct predictions
    return validate_as(Plan, raw, what, PlanError)


def save_plan(plan: Plan, file: str | Path) -> None:
    """Writes a plan file; bundle folders are written as they are in the plan. Raises OSError."""
    write_text(Path(file), plan.model_dump_json(indent=2, exclude_none=True) + "\n")
