"""The bundles of MP-Rec's representations, small."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.gpu.representations import accuracies, make_bundles, representation
from benchmarks.routing.mprec_machines import LARGEST
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.dlrm.representation import KINDS


def test_every_representation_is_a_bundle_of_the_same_model(tmp_path: Path) -> None:
    bundles = make_bundles(tmp_path, 2_000, (8,))
    assert tuple(bundles) == KINDS
    loaded = {kind: load_bundle(path) for kind, path in bundles.items()}
    rows = {kind: [v.rows for v in b.encoder.vocabularies.values()] for kind, b in loaded.items()}
    assert all(np.array_equal(rows[kind], rows["table"]) for kind in KINDS)
    assert {kind: b.manifest.representation.kind for kind, b in loaded.items()} == {k: k for k in KINDS}


def test_select_computes_the_largest_tables_and_stores_the_others() -> None:
    sizes = {f"t{n}": n for n in range(1, 10)}
    chosen = representation("select", sizes, (8,))
    assert chosen is not None
    assert chosen.cuts == {f"t{n}": n for n in range(1, 10 - LARGEST)}


def test_selects_accuracy_lies_between_those_of_its_parts() -> None:
    known = accuracies()
    assert known["table"] < known["select"] < known["dhe"] < known["hybrid"]
