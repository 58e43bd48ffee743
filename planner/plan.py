"""The plan: which paths a server opens, and the limits it keeps.

A readable JSON file in, one frozen, validated `Plan` out. A path is a representation on a device
(`table@cpu`): a bundle, the runtime that executes it and where. Paths of bundles are relative to
the plan file, so that a plan and its bundles travel together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from models.errors import PolyrecError
from models.precision import DensePrecision
from models.schema import Strict, one_line

PathName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@:-]+$", max_length=64)]
Rows = Annotated[int, Field(ge=1)]


class PlanError(PolyrecError):
    """A plan file that is missing, malformed or contradicts itself."""


class Limits(Strict):
    """What one server accepts before it refuses.

    max_body_bytes: of one request, as sent and after decompression (413 beyond).
    max_request_rows: rows of one request (413 beyond).
    max_batch_rows: waiting queries are merged up to this many rows; one larger query runs alone.
    max_queued_rows: rows that may wait at one lane (429 beyond).
    """

    max_body_bytes: Annotated[int, Field(ge=1)] = 16 * 2**20
    max_request_rows: Rows = 4096
    max_batch_rows: Rows = 1024
    max_queued_rows: Rows = 16384

    @model_validator(mode="after")
    def _a_request_fits_the_queue(self) -> Limits:
        if self.max_queued_rows < self.max_request_rows:
            raise ValueError(
                f"max_queued_rows {self.max_queued_rows} is below max_request_rows "
                f"{self.max_request_rows}: the largest request could never be queued"
            )
        return self


class PlannedPath(Strict):
    """One path: `bundle` executed by `runtime` on `device`, its dense net in a precision."""

    name: PathName
    bundle: Path
    runtime: Literal["torch", "onnx"]
    device: str = "cpu"
    precision: DensePrecision = "fp32"


class Plan(Strict):
    """The chosen paths, the default latency budget in milliseconds, and the limits."""

    version: Literal[1] = 1
    paths: Annotated[tuple[PlannedPath, ...], Field(min_length=1)]
    default_budget_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _path_names_differ(self) -> Plan:
        names = [path.name for path in self.paths]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"path '{name}' is planned twice")
        return self


def single_path_plan(
    bundle: Path,
    representation: str,
    runtime: str,
    device: str = "cpu",
    precision: DensePrecision = "fp32",
) -> Plan:
    """The plan of `polyrec serve --bundle`: one bundle on one device, default limits.

    A dense precision other than fp32 stands in the path's name: `table.int8@cpu`. Raises PlanError if
    there is no such runtime.
    """
    name = f"{representation}{'' if precision == 'fp32' else f'.{precision}'}@{device}"
    path = {
        "name": name,
        "bundle": bundle,
        "runtime": runtime,
        "device": device,
        "precision": precision,
    }
    try:
        return Plan.model_validate({"paths": (path,)})
    except ValidationError as e:
        raise PlanError(f"path '{name}': {one_line(e)}") from None


def load_plan(file: str | Path) -> Plan:
    """Reads a plan file. Raises PlanError, in one line that names the key and the offence."""
    try:
        raw = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"no plan file '{file}'") from None
    except (OSError, UnicodeDecodeError) as e:
        raise PlanError(f"cannot read plan '{file}': {e}") from None
    except (json.JSONDecodeError, RecursionError) as e:
        raise PlanError(f"plan '{file}' is not JSON: {e}") from None
    if not isinstance(raw, dict):
        raise PlanError(f"plan '{file}': the file must be an object, not {type(raw).__name__}")
    try:
        plan = Plan.model_validate(raw)
    except ValidationError as e:
        raise PlanError(f"plan '{file}': {one_line(e)}") from None
    beside = Path(file).parent
    paths = tuple(p.model_copy(update={"bundle": beside / p.bundle}) for p in plan.paths)
    return plan.model_copy(update={"paths": paths})


def save_plan(plan: Plan, file: str | Path) -> None:
    """Writes a plan that `load_plan` reads back; bundles are named as the plan names them."""
    Path(file).write_text(plan.model_dump_json(indent=2) + "\n", encoding="utf-8")
