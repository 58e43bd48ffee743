"""What serving costs beside the profile: a calibration of a live server in, what the simulator adds out.

A profile times batches of one request each, one after another. A server's loop turns for every batch, reads
and writes every request; a batch of several requests has several contexts to encode; between two batches HTTP
takes their place in the caches; and a core that slept some milliseconds, a virtual one above all, comes back
slow. `polyrec.loadtest.comparison.calibration` measures each of these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict, read_json, validate_as
from polyrec.planner.plan import PathName, Plan

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SignedSeconds = Annotated[float, Field(allow_inf_nan=False)]

READ_SHARE = 0.5
"""Share of a query's cost that comes before it is offered; the router plans by the half as well."""


class CostsError(PolyrecError):
    """A file of costs that is missing, malformed, or of another plan."""


class BatchCost(Strict):
    """Seconds of a batch beyond the profile's: each batch, and each query in it beyond the first.

    Negative where the profile was taken in a worse hour than the calibration.
    """

    batch_s: SignedSeconds = 0.0
    query_s: SignedSeconds = 0.0


class Costs(Strict):
    """wake_s: a request's way to a loop that sleeps, and its answer's back, beside the server's own work.

    cooled: (seconds of sleep, seconds that the next request takes longer for them), from no sleep on, linear
    between and flat beyond. turn_s: of the loop for each batch; after_s: the part of it that comes after the
    answers. query_s, row_s: reading, parsing, answering a query, and each of its rows. refuse_s: reading one
    that is refused unparsed, and saying so; half of it to say so of one that was parsed; None: as a query's.
    tick_s: a turn of the control loop. held_rate, held_s: how often a second at work others take the core
    from the loop, and for how long, the mean. unit_s: what a piece of work (loadtest/comparison/pacer.py)
    took on that core meanwhile, the pace that all of these are of; None: not measured. batches: by path;
    one that is missing takes what its profile says.
    """

    wake_s: Seconds = 0.0
    cooled: tuple[tuple[Seconds, Seconds], ...] = ()
    turn_s: Seconds = 0.0
    after_s: Seconds = 0.0
    query_s: Seconds = 0.0
    row_s: Seconds = 0.0
    refuse_s: Seconds | None = None
    tick_s: Seconds = 0.0
    held_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    held_s: Seconds = 0.0
    unit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    batches: dict[PathName, BatchCost] = Field(default_factory=dict)


def load_costs(file: str | Path, plan: Plan) -> Costs:
    """Reads costs that `loadtest.comparison.calibration` wrote. Raises CostsError, in one line."""
    what = f"costs '{file}'"
    try:
        raw = read_json(Path(file), what, CostsError)
    except FileNotFoundError:
        raise CostsError(
            f"no costs '{file}'; measure them: "
            f"python -m polyrec.loadtest.comparison.calibration PLAN --out {file}"
        ) from None
    costs = validate_as(Costs, raw, what, CostsError)
    lacking = [p.name for p in plan.paths if p.name not in costs.batches]
    if lacking:
        raise CostsError(
            f"costs '{file}' lack path '{lacking[0]}': calibrate with the plan that is simulated"
        )
    return costs
