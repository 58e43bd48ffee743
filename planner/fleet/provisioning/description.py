"""The fleet file: node types with prices and counts, models with their traffic by hour.

`polyrec plan --fleet fleet.yaml` reads it. Every model has a profile (or a plan) for each node type that may
run it; files are relative to the fleet file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict, read_described
from polyrec.planner.plan import BudgetMs
from polyrec.planner.traffic import Sizes

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)]
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]
"""Name of a node type, and so of a group of replicas (`polyrec cluster`)."""
Price = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
MAX_STEPS = 24 * 7


class FleetError(PolyrecError):
    """Raised if a fleet file is missing, malformed, or does not fit its profiles."""


class NodeType(Strict):
    """One kind of node.

    machine: description to use instead of a profile's own, as for `polyrec plan --machine`; plans need one.
    price_per_hour: dollars; None: the sum of the machine's devices. most: maximum number of nodes at a time.
    rented: `hourly`, or `daily`, the same number at every hour. spot_loss: share of the nodes that may be
    withdrawn at once.
    """

    name: NodeName
    machine: str | None = None
    price_per_hour: Price | None = None
    most: Annotated[int, Field(ge=0)] | None = None
    rented: Literal["hourly", "daily"] = "hourly"
    spot_loss: Annotated[float, Field(ge=0, le=1)] = 0.0


class FleetModel(Strict):
    """One model.

    profiles: file by node type. rate: queries/s, one number per hour. weight: value of a million units of
    information in dollars; 0: only cost and `quality` decide. quality: minimum mean quality of the answered
    rows, over the day or in each hour (`quality_over`).
    """

    name: Name
    profiles: Annotated[dict[Name, Path], Field(min_length=1)]
    slo_ms: BudgetMs
    sizes: Sizes
    rate: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=MAX_STEPS)]
    weight: Price = 0.0
    quality: Annotated[float, Field(allow_inf_nan=False)] | None = None
    quality_over: Literal["day", "hour"] = "day"


class Fleet(Strict):
    """Node types and models. spare: extra capacity, as a share of each hour's rate."""

    nodes: Annotated[tuple[NodeType, ...], Field(min_length=1)]
    models: Annotated[tuple[FleetModel, ...], Field(min_length=1)]
    spare: Annotated[float, Field(ge=0, le=10)] = 0.0

    @model_validator(mode="after")
    def _fits_together(self) -> Fleet:
        nodes = [node.name for node in self.nodes]
        for kind, names in (("node type", nodes), ("model", [model.name for model in self.models])):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{kind} '{name}' is described twice")
        for model in self.models:
            for name in model.profiles:
                if name not in nodes:
                    raise ValueError(f"model '{model.name}' has a profile of an unknown node type '{name}'")
            if len(model.rate) != self.hours:
                raise ValueError(
                    f"model '{model.name}' has rates of {len(model.rate)} hours, '{self.models[0].name}' of "
                    f"{self.hours}"
                )
        return self

    @property
    def hours(self) -> int:
        """Number of hours that are planned."""
        return len(self.models[0].rate)


def load_fleet(file: str | Path) -> Fleet:
    """Reads a YAML or JSON file; profiles and machine files are relative to it. Raises FleetError."""
    fleet = read_described(Fleet, file, "fleet file", FleetError)
    beside = Path(file).parent
    models = tuple(
        model.model_copy(update={"profiles": {n: beside / f for n, f in model.profiles.items()}})
        for model in fleet.models
    )
    nodes = tuple(
        node.model_copy(update={"machine": str(beside / node.machine)})
        if node.machine and (beside / node.machine).is_file()
        else node
        for node in fleet.nodes
    )
    return fleet.model_copy(update={"models": models, "nodes": nodes})
