"""Predicts the same rows with several bundles.

`predict_all` returns each bundle's probability of every row. Bundles with the same encoder (vocabulary and
statistics) share one pass over the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.manifest import VOCABULARY
from polyrec.models.data.altered_values import AlteredValues
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import OnMalformed, open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION, Splitter, fit_splitter
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.errors import DataError
from polyrec.models.progress import Phase, ignore_phase
from polyrec.models.runtimes import open_runtime, predict_rows
from polyrec.models.schema.batch import F32, I64


@dataclass(frozen=True, slots=True)
class Predictions:
    """Labels of test rows, and the models' predictions for them.

    label: float32 [rows]. group: int64 [rows] or None. probabilities: name -> float32 [rows].
    negatives_kept: share of the negatives in the data, from the schema.
    altered: values of the rows that the first model's encoder replaced.
    """

    label: F32
    group: I64 | None
    probabilities: dict[str, F32]
    negatives_kept: float = 1.0
    altered: AlteredValues = field(default_factory=AlteredValues)


def predict_all(
    bundles: Mapping[str, Bundle],
    path: str | Path,
    splits: Sequence[int],
    *,
    runtime: str = "torch",
    device: str = "cpu",
    precision: DensePrecision = "fp32",
    on_malformed: OnMalformed = "fatal",
    phase: Phase = ignore_phase,
    period: tuple[str | None, str | None] = (None, None),
    splitter: Splitter | None = None,
) -> Predictions:
    """Returns each bundle's probabilities of the rows of the splits, by its name in `bundles`.

    path: the data, see polyrec.models.data.reader.open_data. runtime, device, precision: see
    polyrec.models.runtimes.open_runtime.
    period: since and until; only rows of this period, split as if there were no others.
    splitter: of these rows; by default it is fitted, which reads a column.
    Raises DataError if the bundles differ in split, label or group.
    """
    names = list(bundles)
    first = bundles[names[0]].manifest.schema_
    for name in names[1:]:
        schema = bundles[name].manifest.schema_
        for key in ("split", "label", "group"):
            if getattr(schema, key) != getattr(first, key):
                raise DataError(
                    f"bundle '{name}' has another {key} in its schema than '{names[0]}': "
                    "they cannot be compared on the same rows"
                )
    label: F32 | None = None
    altered = AlteredValues()
    everything = set(splits) == {TRAIN, VALIDATION, TEST}
    group: I64 | None = None
    found: dict[str, F32] = {}
    for family in _families(bundles):
        encoder = bundles[family[0]].encoder
        reader = open_data(path, encoder.schema, on_malformed, *period)
        hint = reader.rows_hint
        if splitter is None and everything and first.split.rule == "time":
            # needs no cuts, which rows of a single time would not have
            splitter = Splitter(first.split, (-math.inf, -math.inf))
        splitter = splitter or fit_splitter(reader, first, phase("split", hint))
        with encode(reader, encoder, splitter, splits, progress=phase("encode", hint)) as data:
            if label is None:
                # copies, because closing frees the data
                label, altered = data.label.copy(), data.altered
                group = None if data.group is None else data.group.copy()
            elif not np.array_equal(label, data.label):
                raise DataError(
                    f"bundle '{family[0]}' reads other rows of '{path}' than '{names[0]}': "
                    "they cannot be compared"
                )
            for name in family:
                model = open_runtime(runtime, bundles[name], device, precision)
                found[name] = predict_rows(model, data, progress=phase(f"predict {name}", data.rows))
    assert label is not None
    by_name = {name: found[name] for name in names}
    return Predictions(label, group, by_name, first.label.negatives_kept, altered)


def _families(bundles: Mapping[str, Bundle]) -> list[list[str]]:
    """Groups names of bundles by equal encoders, in order of first occurrence."""
    families: dict[tuple[str, ...], list[str]] = {}
    for name, bundle in bundles.items():
        m = bundle.manifest
        standards = sorted((n, s.mean, s.deviation) for n, s in m.standards.items())
        key = (m.files[VOCABULARY].sha256, repr(standards), m.schema_.model_dump_json())
        families.setdefault(key, []).append(name)
    return list(families.values())
