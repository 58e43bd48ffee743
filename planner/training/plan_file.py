"""Reads the proposal from a training plan that `polyrec plan --train --out FILE` wrote."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from polyrec.models.files import one_line, read_json
from polyrec.planner.training.description import TrainingPlanError
from polyrec.planner.training.training_plan import TrainingOption


def load_proposal(file: str | Path) -> TrainingOption:
    """Reads the proposal of a plan's file. Raises TrainingPlanError."""
    what = f"training plan '{file}'"
    try:
        raw = read_json(Path(file), what, TrainingPlanError)
    except FileNotFoundError:
        raise TrainingPlanError(f"no {what}") from None
    if "chosen" not in raw:
        raise TrainingPlanError(f"{what} has no proposal `chosen`: write it with `polyrec plan --train`")
    try:
        return TypeAdapter(TrainingOption).validate_python(raw["chosen"])
    except ValidationError as e:
        raise TrainingPlanError(f"{what}: chosen.{one_line(e)}") from None
