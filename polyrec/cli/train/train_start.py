"""Defines the options of `polyrec train` for its start: a recipe, or a bundle to continue."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from polyrec.loadtest.arguments import non_negative_int, positive_float

if TYPE_CHECKING:
    from polyrec.models.schema.schema import Schema
    from polyrec.models.training.recipe import RecipeFile
    from polyrec.models.training.warm.start import WarmStart


def add_start_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--from",
        dest="start",
        metavar="BUNDLE",
        help="continue from this bundle with new data: its schema, recipe, weights and rows of known ids; "
        "new ids get new rows",
    )
    group.add_argument(
        "--forget-unseen",
        type=non_negative_int,
        metavar="N",
        help="reuse for new ids the rows of ids that the new data do not use and that had at most N lookups "
        "before (counts halve with every warm start)",
    )
    group.add_argument(
        "--step-size",
        type=positive_float,
        metavar="FACTOR",
        help="factor on the recipe's step sizes (default 0.5)",
    )
    group.add_argument(
        "--new-standards",
        action="store_true",
        help="normalize with means and deviations of the new data (default: those of the bundle)",
    )


def refuse_with_start(args: argparse.Namespace) -> None:
    """Raises PolyrecError for options that do not go with a warm start, or only with one."""
    from polyrec.models.errors import PolyrecError

    if args.start is None:
        for flag, given in (
            ("--forget-unseen", args.forget_unseen is not None),
            ("--step-size", args.step_size),
            ("--new-standards", args.new_standards),
        ):
            if given:
                raise PolyrecError(f"{flag} applies to a warm start: add --from BUNDLE")
        return
    for flag, given, why in (
        ("--calibration", args.calibration, "the bundle's vocabularies are continued"),
        ("--representation", args.representation, "the bundle's representation is kept"),
        ("--search", args.search, "search for a recipe first, then give it with --recipe"),
    ):
        if given:
            raise PolyrecError(f"{flag} cannot be combined with --from: {why}")


def start_of(args: argparse.Namespace) -> tuple[WarmStart | None, Schema]:
    """Returns the bundle to continue, if any, and the schema of the data."""
    from polyrec.models.bundle.bundle import load_bundle
    from polyrec.models.schema.schema import load_schema
    from polyrec.models.training.warm.start import STEP_SIZE, WarmStart

    schema = load_schema(args.schema) if args.schema else None
    if args.start is None:
        assert schema is not None
        return None, schema
    factor = args.step_size or STEP_SIZE
    start = WarmStart(load_bundle(args.start), args.forget_unseen, args.new_standards, factor)
    if schema is None:
        return start, start.bundle.manifest.schema_
    start.require_schema(schema)
    return start, schema


def training_of(args: argparse.Namespace, schema: Schema, start: WarmStart | None) -> RecipeFile:
    """Returns the training of the recipe file; a warm start keeps the bundle's shape and, by default,
    recipe.
    """
    from polyrec.models.training.recipe import default_recipe_file, load_recipe_file

    training = load_recipe_file(args.recipe) if args.recipe else default_recipe_file(schema)
    if start is None:
        return training
    recipe = training.recipe if args.recipe else start.recipe() or training.recipe
    shape = start.bundle.manifest.architecture
    return training.model_copy(update={"architecture": shape, "recipe": recipe})
