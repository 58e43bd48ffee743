"""Defines the variants that benchmarks/quality/representations.py compares, and how to build each.

Trained          learned from the data with the data set's recipe
Derived          made by a function from another variant's bundle with the same seed
ServedVariant    another variant's unchanged bundle, with its dense net executed in another precision
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.derive import materialize, quantize_bundle
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.dlrm.precision import DensePrecision, Precision
from polyrec.models.dlrm.representation import Representation, RepresentationKind
from polyrec.models.training.distill import Regression, distill
from polyrec.models.training.recipe import RecipeFile

Derive = Callable[[Bundle, RecipeFile], tuple[DLRM, Representation]]


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained variant."""

    kind: RepresentationKind


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived variant. by: function of the source's bundle, and its recipe. how: describes `by`."""

    source: str
    how: str
    by: Derive


@dataclass(frozen=True, slots=True)
class ServedVariant:
    """A variant that executes another variant's bundle.

    runtime, precision: as for polyrec.models.runtimes.open_runtime.
    """

    source: str
    runtime: str
    precision: DensePrecision


Variant = Trained | Derived | ServedVariant


def rows_in(source: str, precision: Precision) -> Derived:
    """Returns a bundle of the source's stored rows in another precision."""
    return Derived(source, f"rows in {precision}", lambda bundle, *_: quantize_bundle(bundle, precision))


def hot(source: str, rows: int) -> Derived:
    """Returns a bundle that stores the source's most accessed computed rows."""
    return Derived(source, f"{rows} rows materialized", lambda bundle, *_: materialize(bundle, rows))


def distilled(source: str, kind: RepresentationKind, steps: int) -> Derived:
    """Returns a bundle of another kind, fitted to the source's rows."""

    def by(bundle: Bundle, training: RecipeFile) -> tuple[DLRM, Representation]:
        representation = training.representation(kind, bundle.encoder.vocabularies)
        model, _ = distill(bundle, representation, Regression(steps=steps, seed=training.recipe.seed))
        return model, representation

    return Derived(source, f"{kind} distilled in {steps} steps", by)


VARIANTS: dict[str, Variant] = {
    "table": Trained("table"),
    "table-bf16": rows_in("table", "bf16"),
    "table-int8": rows_in("table", "int8"),
    "table-int4": rows_in("table", "int4"),
    "table, net bf16": ServedVariant("table", "torch", "bf16"),
    "table, net int8": ServedVariant("table", "onnx", "int8"),
    "dhe": Trained("dhe"),
    "dhe-distilled": distilled("table", "dhe", steps=1000),
    "select-distilled": distilled("table", "select", steps=1000),
    "select": Trained("select"),
    "select-int8": rows_in("select", "int8"),
    "hybrid": Trained("hybrid"),
    "hybrid-int8": rows_in("hybrid", "int8"),
}
BASELINE = "table"
