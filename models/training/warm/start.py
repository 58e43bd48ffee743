"""Implements warm starts: training continues from a bundle with new data.

The bundle supplies the schema, the architecture, the representation, its weights, its vocabularies (continued
as in models/schema/continuation.py) and the means and deviations of dense features. A bundle has no optimizer
state, so the optimizer starts fresh, with smaller steps than a training from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.dlrm.representation import Representation
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import I64
from polyrec.models.schema.continuation import NEW, PreviousVocabularies, old_ranks
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import Calibration
from polyrec.models.schema.schema import Schema
from polyrec.models.training.objective import unsampling
from polyrec.models.training.recipe import Recipe
from polyrec.models.training.warm.rows import continued_model, continued_representation, stored_in_part

STEP_SIZE = 0.5
"""Default factor of the recipe's step sizes; measured in docs/results/warm-start.md."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Settings of a warm start.

    forget: see polyrec.models.schema.continuation.PreviousVocabularies.
    new_standards: whether to use means and deviations of the new data instead of the bundle's.
    step_size: factor applied to the recipe's step sizes.
    Raises DataError for a bundle with rows that are not fp32, or with a materialized prefix.
    """

    bundle: Bundle
    forget: int | None = None
    new_standards: bool = False
    step_size: float = STEP_SIZE

    def __post_init__(self) -> None:
        representation = self.bundle.manifest.representation
        if representation.precision != "fp32":
            raise DataError(
                f"'{self.bundle.path}' stores rows in {representation.precision}: continue the fp32 bundle "
                "that it was made from"
            )
        if representation.kind != "select" and any(representation.cuts.values()):
            raise DataError(
                f"'{self.bundle.path}' stores computed rows: continue the bundle that it was made from"
            )

    def require_schema(self, schema: Schema) -> None:
        """Raises DataError unless it is the bundle's schema; name and split may differ."""
        was, now = (s.model_dump(exclude={"name", "split"}) for s in (self.bundle.manifest.schema_, schema))
        for key in was:
            if was[key] != now[key]:
                raise DataError(
                    f"schema '{schema.name}' is not that of '{self.bundle.path}': it has another '{key}'"
                )

    def recipe(self) -> Recipe | None:
        """Returns the recipe that the bundle was trained with; None for an imported bundle."""
        found = self.bundle.manifest.training.get("recipe")
        return None if found is None else Recipe.model_validate(found)

    def with_smaller_steps(self, recipe: Recipe) -> Recipe:
        """Returns the recipe with the step sizes of a warm start."""
        smaller = {key: getattr(recipe, key) * self.step_size for key in ("dense_lr", "sparse_lr")}
        return recipe.model_copy(update=smaller)

    def previous(self) -> PreviousVocabularies:
        """Returns the vocabularies to continue, with the settings for it."""
        return PreviousVocabularies(
            self.bundle.encoder.vocabularies, self.forget, stored_in_part(self.bundle)
        )

    def encoder(self, found: Calibration) -> Encoder:
        """Returns the encoder with continued vocabularies."""
        standards = found.standards if self.new_standards else self.bundle.encoder.standards
        return Encoder(self.bundle.manifest.schema_, found.vocabularies, standards)

    def representation(self, encoder: Encoder) -> Representation:
        """Returns the representation of the continued model."""
        return continued_representation(self.bundle, encoder.vocabularies)

    def model(self, encoder: Encoder, recipe: Recipe) -> DLRM:
        """Returns the bundle's model with the rows of the encoder, ready to train."""
        model = continued_model(self.bundle, encoder.vocabularies, recipe.seed, recipe.row_spread)
        for head in model.net.heads:
            unsampling(1 / self.bundle.manifest.schema_.label.negatives_kept).apply(head)
        return model

    def with_known(self, encoder: Encoder, lookups: Mapping[str, I64]) -> dict[str, I64]:
        """Returns lookups by feature and rank, with at least one for each id that the bundle has.

        Id dropout counts lookups of ids that were never trained, and the bundle's ids were.
        """
        found = {}
        for feature in encoder.schema.categorical:
            if feature.name in lookups:
                table = feature.table_name
                known = old_ranks(self.bundle.encoder.vocabularies[table], encoder.vocabularies[table]) != NEW
                found[feature.name] = lookups[feature.name].clip(min=known.astype(int))
        return found

    def identity(self) -> dict[str, Any]:
        """Returns the part of a checkpoint's identity that depends on the warm start; JSON-serializable."""
        return {
            "version": self.bundle.manifest.version,
            "forget": self.forget,
            "new_standards": self.new_standards,
            "step_size": self.step_size,
        }

    def record(self, encoder: Encoder) -> dict[str, Any]:
        """Returns the entry for the new bundle's manifest, with the known, new and forgotten ids of each
        table.
        """
        tables = {}
        for table, was in self.bundle.encoder.vocabularies.items():
            now = encoder.vocabularies[table]
            known = int((old_ranks(was, now) != NEW).sum()) - (now.rows - now.size)
            tables[table] = {"known": known, "new": now.size - known, "forgotten": was.size - known}
        return {**self.identity(), "tables": tables}
