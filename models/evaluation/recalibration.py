"""Gives a trained bundle a popularity order, counts and measured quality, from data or from an access log.

An imported model has none of these three, so tiers, plans and routing lack information. The result is a new
bundle with the same prediction for every id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polyrec.models.bundle.bundle import Bundle, require_target, write_bundle
from polyrec.models.bundle.manifest import CALIBRATED, COUNTED, with_width
from polyrec.models.bundle.reorder import reordered
from polyrec.models.data.access_log import AccessLog
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import OnMalformed, open_data
from polyrec.models.data.split import fit_splitter
from polyrec.models.dlrm.activations import Activations, observe_activations
from polyrec.models.errors import DataError
from polyrec.models.evaluation.feature_drift import FEATURE_REFERENCE
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.progress import Phase, ignore_phase
from polyrec.models.runtimes import open_runtime, predict_rows
from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.lookup_counts import LookupCounts
from polyrec.models.schema.schema import ROLES, Role, Split

Metrics = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Observed:
    """Lookups of a bundle's rows, and its quality, observed in data or a log.

    accesses: table -> lookups, int64 [rows], in the order of stable ids. rows: rows or log lines read.
    counted: contexts and candidates in them. unknown: values that no row serves. malformed: rows or lines
    left out.
    metrics: by manifest key; empty without labels. activations: on the measured rows; None keeps the
    bundle's.
    origin: recorded in the manifest.
    """

    accesses: Mapping[str, I64]
    rows: int
    counted: Mapping[Role, int]
    unknown: int
    malformed: int
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    activations: Activations | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)


def observe_data(
    bundle: Bundle,
    path: str | Path,
    splits: Sequence[int] | None = None,
    on_malformed: OnMalformed = "fatal",
    phase: Phase = ignore_phase,
) -> Observed:
    """Counts the lookups of all rows of a data file, and measures quality on some of them.

    splits: splits to measure, by the schema's split rule; None: all rows, in which case the rule's columns
    are not needed. Raises DataError as `encode` does, and if there are no such rows or they have one class.
    """
    schema = bundle.manifest.schema_
    # a rule that every data file can follow, because it only reads the label
    any_file = schema.model_copy(update={"split": Split(rule="hash", columns=(schema.label.column,))})
    readable = any_file if splits is None else schema
    try:
        reader = open_data(path, readable, on_malformed)
    except DataError as e:
        if splits is None:
            raise
        # if the data cannot be read without the split's columns either, that is the error
        open_data(path, any_file, on_malformed)
        raise DataError(f"{e}; to measure quality on all rows, without a split, give --split all") from None
    splitter = fit_splitter(reader, readable, phase("split", reader.rows_hint))
    encoder = Encoder(readable, bundle.encoder.vocabularies, bundle.encoder.standards)
    counts = LookupCounts(encoder)
    metrics: dict[str, Metrics] = {}
    with encode(reader, encoder, splitter, progress=phase("encode", reader.rows_hint)) as data:
        for role in ROLES:
            for block in data.blocks(role):
                counts.add_block(role, block)
        rows = np.arange(data.rows) if splits is None else data.select(*splits)
        if not rows.size:
            raise DataError(f"{path}: no row is in the split to measure; choose another, or --split all")
        if len(np.unique(data.label[rows])) < 2:
            raise DataError(f"{path}: all labels of the rows to measure are equal: quality is undefined")
        for view in bundle.by_width():
            advance = phase(f"predict {view.name}", rows.size)
            p = predict_rows(open_runtime("torch", view), data, rows, advance)
            group = None if data.group is None else data.group[rows]
            quality = evaluate(p, data.label[rows], group, schema.label.negatives_kept)
            metrics[with_width("test", view.width)] = quality.as_dict()
        activations = observe_activations(bundle.model(), data.batch, rows)
        total = data.rows
    origin = {"data": Path(path).name, "rows": total, "measured_rows": int(rows.size)}
    seen = counts.by_id(), total, counts.rows(), counts.unknown, reader.malformed
    return Observed(*seen, metrics, activations, origin)


def observe_log(
    bundle: Bundle,
    path: str | Path,
    ids: bool = False,
    on_malformed: OnMalformed = "fatal",
    phase: Phase = ignore_phase,
) -> Observed:
    """Counts the lookups of an access log (models/data/access_log.py). Raises DataError."""
    log = AccessLog(path, bundle.manifest.schema_, ids, on_malformed)
    counts = LookupCounts(bundle.encoder)
    rows = log.count(counts, phase("count", log.rows_hint))
    accesses = counts.by_id()
    if not any(table.any() for table in accesses.values()):
        raise DataError(f"access log '{path}': none of its values is in the bundle's tables")
    origin = {"access_log": Path(path).name, "rows": rows}
    return Observed(accesses, rows, counts.rows(), counts.unknown, log.malformed, origin=origin)


def write_recalibrated(bundle: Bundle, observed: Observed, out: str | Path, replace: bool = False) -> Bundle:
    """Writes the bundle in the observed order, with its counts and metrics.

    Metrics that were not measured now stay unchanged. Raises BundleError as `reordered` and `write_bundle`
    do.
    """
    require_target(out, replace)
    model, encoder = reordered(bundle, observed.accesses)
    manifest = bundle.manifest
    calibrated = {
        "from": manifest.version,
        **observed.origin,
        COUNTED: dict(observed.counted),
        "unknown": observed.unknown,
    }
    # its bins are ranges of ranks in the previous order
    training = {key: value for key, value in manifest.training.items() if key != FEATURE_REFERENCE}
    return write_bundle(
        out,
        model,
        manifest.representation,
        encoder,
        {**manifest.metrics, **observed.metrics},
        {**training, CALIBRATED: calibrated},
        replace,
        observed.activations or manifest.activations,
    )
