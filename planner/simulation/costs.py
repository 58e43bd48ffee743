"""Costs of serving that a profile does not include; the simulator adds them.

A profile times consecutive batches of one request each. A server also runs an event loop iteration per batch,
and reads and answers every request. A batch of several requests has several contexts to encode, HTTP evicts
CPU caches between batches, and a core is slow after some milliseconds of sleep.
`polyrec.loadtest.comparison.calibration` measures all this on a live server and writes the file that
`load_costs` reads.
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
"""Share of a query's cost that is spent before it is offered; the router also assumes one half."""


class CostsError(PolyrecError):
    """A costs file is missing, malformed, or belongs to another plan."""


class BatchCost(Strict):
    """Seconds beyond the profile: per batch, and per query in it beyond the first.

    Negative if the machine was slower during the profile than during the calibration.
    """

    batch_s: SignedSeconds = 0.0
    query_s: SignedSeconds = 0.0


class RowReads(Strict):
    """Reads of rows in slow tiers.

    share: share of the queries that miss any rows.
    misses: mean misses of these queries, at least 1.
    read_s, miss_s: median seconds of a query's reads, fixed and per miss.
    tail: 99th percentile over median.
    """

    share: Annotated[float, Field(ge=0, le=1)]
    misses: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    read_s: Seconds = 0.0
    miss_s: Seconds = 0.0
    tail: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0


class Costs(Strict):
    """Seconds of serving on one core.

    wake_s: a request's way to a sleeping event loop and its answer's way back.
    cooled: (seconds of sleep, extra seconds of the next request), linear between points and constant beyond.
    turn_s, after_s: the loop's time per batch, and the part of it after the answers.
    query_s, row_s: reading, parsing and answering, per query and additionally per row.
    refuse_s: reading and rejecting an unparsed query; rejecting a parsed one costs half of it. None: query_s.
    tick_s: the router's tick.
    held_rate, held_s: preemptions of the loop per second of work, and their mean duration.
    batches: extra cost by path; none for a path without an entry.
    reads: reads of rows in slow tiers, None without such tiers.
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
    batches: dict[PathName, BatchCost] = Field(default_factory=dict)
    reads: RowReads | None = None


def load_costs(file: str | Path, plan: Plan) -> Costs:
    """Reads a costs file and checks that it fits the plan. Raises CostsError."""
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
