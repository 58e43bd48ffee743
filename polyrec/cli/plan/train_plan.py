"""Runs `polyrec plan --train`: plans the placement of a training's rows, its nodes and its speed."""

from __future__ import annotations

import argparse


def run_training(args: argparse.Namespace) -> int:
    """Plans the training described by `args.train`. Raises PolyrecError."""
    from polyrec.cli.plan.described_plan import refuse_other_flags, write_plan
    from polyrec.cli.plan.plan_output import check_outputs
    from polyrec.planner.training.description import TrainingPlanError, load_description
    from polyrec.planner.training.explain import page
    from polyrec.planner.training.popularity import calibrated_popularity, described_popularity
    from polyrec.planner.training.training_plan import plan_training

    refuse_other_flags(args, args.train, TrainingPlanError)
    if args.pictures:
        raise TrainingPlanError("--pictures draws no training: omit it")
    check_outputs(args)
    description = load_description(args.train)
    if description.calibration is None:
        popularity = described_popularity(description.tables, description.rows_per_request)
    else:
        from polyrec.models.schema.popularity import load_calibration
        from polyrec.models.schema.schema import load_schema

        assert description.schema_ is not None
        schema = load_schema(description.schema_)
        calibration = load_calibration(description.calibration, schema)
        popularity = calibrated_popularity(calibration, schema, description.rows_per_request)
    plan = plan_training(description, popularity)
    write_plan(args, plan.as_dict(), page(plan), "training plan", TrainingPlanError)
    return 0
