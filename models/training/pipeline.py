"""Trains a bundle from data: splits, calibrates, encodes, trains, measures, and writes it.

Every choice is made on the validation rows, which are part of the training rows. The test rows are used once,
to measure the final model. `polyrec train` and the Python API call `Learner.learn`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyrec.models.bundle.bundle import Bundle, require_target, write_bundle
from polyrec.models.bundle.manifest import with_width
from polyrec.models.data.altered_values import ALTERED, AlteredValues
from polyrec.models.data.encoded import MEMORY_BYTES, EncodedRows, encode
from polyrec.models.data.reader import DataReader
from polyrec.models.data.split import TEST, TRAIN, VALIDATION, Splitter, fit_splitter
from polyrec.models.dlrm.activations import Activations, observe_activations
from polyrec.models.dlrm.dlrm import DLRM, dense_slots, initial_net
from polyrec.models.dlrm.representation import Representation, RepresentationKind, initial_stage
from polyrec.models.embeddings.decoder import fold_norms
from polyrec.models.embeddings.stage import Stage
from polyrec.models.errors import DataError
from polyrec.models.evaluation.feature_drift import FEATURE_REFERENCE, reference_of
from polyrec.models.evaluation.metrics import Quality, evaluate
from polyrec.models.progress import Phase, ignore_phase
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import Calibration, calibrate
from polyrec.models.schema.schema import Schema
from polyrec.models.training.baselines import Baselines
from polyrec.models.training.checkpoint import Checkpoints, CheckpointSettings, Identity
from polyrec.models.training.objective import LogitScale, fit_scale, unsampling
from polyrec.models.training.recipe import Recipe, RecipeFile
from polyrec.models.training.source import Rows, RowSource
from polyrec.models.training.stream import StreamedRows
from polyrec.models.training.tiers.row_tiers import RowTiers
from polyrec.models.training.trainer import (
    FIT,
    REFIT,
    Check,
    FitOptions,
    History,
    Progress,
    fit,
    predict_heads,
    refit,
)
from polyrec.models.training.unseen import lookups_to_hide, recipe_id_dropout, unseen_shares
from polyrec.models.training.warm.start import WarmStart
from polyrec.models.training.workers.workers import Workers
from polyrec.models.version import code_version


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of a training.

    unseen: see models/training/unseen.py. scales: calibration of each head's logits.
    activations: input ranges of the net's layers, on rows that selected or trained its weights.
    altered: counts of replaced values in the training and validation rows.
    """

    encoder: Encoder
    history: History
    model: DLRM
    unseen: dict[str, float]
    baselines: Baselines | None = None
    scales: tuple[LogitScale, ...] = ()
    activations: Activations | None = None
    altered: AlteredValues = field(default_factory=AlteredValues)


@dataclass(frozen=True, slots=True)
class Learner:
    """Trains bundles on one data set.

    sample: share of the rows that determine the popularity order, see models/schema/popularity.py.
    calibration: an existing calibration to use instead of counting.
    baselines: whether to train and measure models/training/baselines.py too.
    record: additional entries for the manifest's `training`.
    checkpoint: where `learn` keeps checkpoints, and resumes those of an identical training.
    notice: called with messages for the user.
    window_rows: rows per window in which training rows are read and shuffled, see models/training/stream.py;
    None: all rows are encoded first. Streams have no baselines.
    workers: the group of workers to train with; worker 0 calls `learn`, the others `assist`.
    device: where steps are taken and predictions made: `cpu`, `cuda` or `cuda:1`.
    start: a bundle to continue, which determines schema, architecture and representation; None: train from
    nothing.
    tiers: where rows are kept that do not all fit in memory, for the representation `table`; None: all in
    memory.
    """

    reader: DataReader
    schema: Schema
    training: RecipeFile
    kind: RepresentationKind = "table"
    sample: float | None = None
    calibration: Calibration | None = None
    baselines: bool = True
    phase: Phase = ignore_phase
    progress: Progress | None = None
    checkpoint: CheckpointSettings | None = None
    notice: Callable[[str], object] = lambda _line: None
    window_rows: int | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    workers: Workers | None = None
    start: WarmStart | None = None
    device: str = "cpu"
    tiers: RowTiers | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe to train with: the training's, with smaller steps for a warm start."""
        return self.start.with_smaller_steps(self.training.recipe) if self.start else self.training.recipe

    def learn(self, out: str | Path, replace: bool = False) -> Bundle:
        """Trains, measures on the test rows and writes the bundle."""
        require_target(out, replace)
        fingerprint = self.reader.fingerprint()
        if self.checkpoint is None:
            bundle = self._learn(out, replace, fingerprint)
        else:
            with Checkpoints(self.checkpoint, self._identity(fingerprint), self.notice) as checkpoints:
                bundle = self._learn(out, replace, fingerprint, checkpoints)
                checkpoints.remove()
        if self.tiers:
            self.tiers.remove()
        return bundle

    def assist(self) -> None:
        """Takes part in a training as a worker that writes no bundle."""
        splitter = fit_splitter(self.reader, self.schema, self.phase("split", self.reader.rows_hint))
        fitted = self._encode_and_fit(splitter, None)
        if self.training.recipe.refit:
            self._encode_and_refit(splitter, fitted, None)

    def _identity(self, fingerprint: str) -> Identity:
        """Returns everything that a checkpoint of this training depends on."""
        return {
            "data": fingerprint,
            "schema": hashlib.sha256(self.schema.model_dump_json().encode()).hexdigest(),
            "recipe": self.training.model_dump(mode="json"),
            "representation": self.kind,
            "calibration": self.calibration and self.calibration.fingerprint(),
            "sample": self.sample,
            "window_rows": self.window_rows,
            "device": self.device,
            "rows": self.tiers and str(self.tiers.folder),
            "from": self.start and self.start.identity(),
            "polyrec": code_version(),
        }

    def _learn(
        self, out: str | Path, replace: bool, fingerprint: str, checkpoints: Checkpoints | None = None
    ) -> Bundle:
        recipe = self.training.recipe
        splitter = fit_splitter(self.reader, self.schema, self.phase("split", self.reader.rows_hint))
        fitted = self._encode_and_fit(splitter, checkpoints)
        if recipe.refit:
            fitted = self._encode_and_refit(splitter, fitted, checkpoints)
        encoder, history, model = fitted.encoder, fitted.history, fitted.model
        fold_norms(model)
        for head, scale in zip(model.net.heads, fitted.scales, strict=False):
            scale.apply(head)
        kept = self.schema.label.negatives_kept
        for head in model.net.heads:
            unsampling(kept).apply(head)
        with self.encoded(encoder, splitter, (TEST,)) as test:
            quality = measure_widths(model, test, self.schema)
            reference = reference_of(encoder, test, test.select(TEST))
            baselines = fitted.baselines.measure(test, kept) if fitted.baselines else {}
            altered = {"training": fitted.altered, "test": test.altered}
        return write_bundle(
            out,
            model,
            self.representation(encoder),
            encoder,
            metrics={
                **named_by_width("test", quality),
                "validation": asdict(best_check(history)),
                **{name: found.as_dict() for name, found in baselines.items()},
            },
            training={
                "recipe": recipe.model_dump(),
                "best_step": history.best_step,
                "steps_per_epoch": history.steps_per_epoch,
                "linear_start": history.linear_start,
                "unseen": fitted.unseen,
                "logit_scales": [asdict(scale) for scale in fitted.scales],
                "data": {"fingerprint": fingerprint, "path": self.reader.path.name},
                ALTERED: {name: found.record() for name, found in altered.items()},
                **({"from": self.start.record(encoder)} if self.start else {}),
                **({"workers": self.workers.record()} if self.workers else {}),
                **({FEATURE_REFERENCE: reference.model_dump()} if reference else {}),
                **self.record,
            },
            replace=replace,
            activations=fitted.activations,
        )

    def _encode_and_fit(self, splitter: Splitter, checkpoints: Checkpoints | None) -> Fitted:
        encoder = self.encoder_of(splitter, (TRAIN,))
        if self.window_rows:
            stream = self._streamed(encoder, splitter, (TRAIN,))
            with self.encoded(encoder, splitter, (VALIDATION,)) as data:
                self.require_classes(stream, Rows(data, data.select(VALIDATION)))
                fitted = self.fit(encoder, stream, Rows(data, data.select(VALIDATION)), checkpoints)
                both = AlteredValues.sum((stream.altered, data.altered))
                return dataclasses.replace(fitted, altered=both)
        with self.encoded(encoder, splitter, (TRAIN, VALIDATION)) as data:
            training, validation = data.select(TRAIN), data.select(VALIDATION)
            for name, rows in (("train", training), ("validation", validation)):
                if not rows.size:
                    raise DataError(f"{self.reader.path}: the split leaves no {name} rows")
            self.require_classes(Rows(data, training), Rows(data, validation))
            fitted = self.fit(encoder, Rows(data, training), Rows(data, validation), checkpoints)
            fitted = dataclasses.replace(fitted, altered=data.altered)
            if not self.baselines:
                return fitted
            seed = self.training.recipe.seed
            baselines = Baselines.fit(encoder, data, training, validation, seed)
            return dataclasses.replace(fitted, baselines=baselines)

    def require_classes(self, training: RowSource, validation: RowSource) -> None:
        """Raises DataError if training rows are of one class; only warns for validation rows.

        A bundle to be continued has seen both classes, so its next rows may be of one.
        """
        label = self.schema.label
        for name, rows in (("training", training), ("validation", validation)):
            if 0.0 < rows.base_rate < 1.0:
                continue
            which = "a click" if rows.base_rate else "without a click"
            found = f"all {rows.size:,} {name} rows are {which}"
            if rows is training and self.start is None:
                raise DataError(
                    f"{self.reader.path}: {found} (label '{label.column}' > {label.positive_above:g}), so "
                    "there is nothing to learn; the schema's label has `positive_above`"
                )
            self.notice(f"warning: {found}: they cannot tell good models from bad ones")

    def fit(
        self, encoder: Encoder, training: RowSource, validation: Rows, checkpoints: Checkpoints | None = None
    ) -> Fitted:
        """Trains a model on the rows `training` and selects its weights on the rows `validation`."""
        model, recipe = self.initial_model(encoder).to(self.device), self.recipe
        known = lookups_to_hide(recipe, encoder, training)
        trained = self.start.with_known(encoder, known) if self.start else known
        unseen = unseen_shares(encoder, trained, lookups_to_hide(recipe, encoder, validation))
        hide = recipe_id_dropout(recipe, encoder, known, unseen)
        table = model.stage
        if self.workers:
            model = self.workers.sharded(model, encoder.vocabularies)
        options = self._fit_options(checkpoints)
        history = fit(model, training, validation, recipe, hide, options)
        model = self._whole(model, table)
        scales: tuple[LogitScale, ...] = ()
        if recipe.calibrate:
            heads = predict_heads(model, validation.data, validation.rows)
            rate = training.base_rate
            scales = tuple(fit_scale(p, validation.label, rate, options.trained_before) for p in heads)
        activations = observe_activations(model, validation.data.batch, validation.rows)
        return Fitted(encoder, history, model, unseen, scales=scales, activations=activations)

    def _fit_options(self, checkpoints: Checkpoints | None) -> FitOptions:
        return FitOptions(self.progress, checkpoints, self.workers, trained_before=self.start is not None)

    def _encode_and_refit(
        self, splitter: Splitter, fitted: Fitted, checkpoints: Checkpoints | None
    ) -> Fitted:
        """Trains a fresh model on training and validation rows together."""
        which = TRAIN, VALIDATION
        encoder, baselines = self.encoder_of(splitter, which), fitted.baselines
        if self.window_rows:
            return self._refit(fitted, encoder, self._streamed(encoder, splitter, which), checkpoints)
        with self.encoded(encoder, splitter, which) as data:
            rows = data.select(*which)
            refitted = self._refit(fitted, encoder, Rows(data, rows), checkpoints)
            if baselines:
                baselines = baselines.refit(encoder, data, rows, self.training.recipe.seed)
        return dataclasses.replace(refitted, baselines=baselines)

    def _refit(
        self, fitted: Fitted, encoder: Encoder, source: RowSource, checkpoints: Checkpoints | None
    ) -> Fitted:
        model, recipe = self.initial_model(encoder, REFIT).to(self.device), self.recipe
        hide = recipe_id_dropout(recipe, encoder, lookups_to_hide(recipe, encoder, source), fitted.unseen)
        table = model.stage
        if self.workers:
            model = self.workers.sharded(model, encoder.vocabularies)
        refit(model, source, recipe, fitted.history, hide, self._fit_options(checkpoints))
        model = self._whole(model, table)
        some = next(source.windows())
        activations = observe_activations(model, some.data.batch, some.rows)
        return dataclasses.replace(fitted, encoder=encoder, model=model, activations=activations)

    def _whole(self, model: DLRM, table: Stage) -> DLRM:
        """Returns the trained model with all of its rows."""
        if self.tiers:
            return self.tiers.whole(model, self.schema)
        return self.workers.whole(model, table) if self.workers else model

    def _streamed(self, encoder: Encoder, splitter: Splitter, which: Sequence[int]) -> StreamedRows:
        assert self.window_rows is not None
        progress = self.phase("count", self.reader.rows_hint)
        return StreamedRows(self.reader, encoder, splitter, which, self.window_rows, progress)

    def encoder_of(self, splitter: Splitter, which: Sequence[int]) -> Encoder:
        """Builds the encoder from the rows of the splits `which`."""
        found = self.calibration or calibrate(
            self.reader,
            self.schema,
            splitter,
            which=which,
            sample=self.sample,
            seed=self.training.recipe.seed,
            progress=self.phase("calibrate", self.reader.rows_hint),
            previous=self.start.previous() if self.start else None,
        )
        if self.start:
            return self.start.encoder(found)
        return Encoder(self.schema, found.vocabularies, found.standards)

    def encoded(self, encoder: Encoder, splitter: Splitter, which: Sequence[int]) -> EncodedRows:
        """Encodes the rows of the splits `which`; when streaming, into files of the temporary folder."""
        progress = self.phase("encode", self.reader.rows_hint)
        memory_bytes = 0 if self.window_rows else MEMORY_BYTES
        return encode(self.reader, encoder, splitter, which, memory_bytes, progress)

    def initial_model(self, encoder: Encoder, run: str = FIT) -> DLRM:
        """Creates the model to train: an untrained one, or that of the bundle to continue."""
        shape, recipe = self.training.architecture, self.training.recipe
        torch.manual_seed(recipe.seed)
        if self.start:
            return self.start.model(encoder, recipe)
        stage: Stage
        rows = encoder.vocabularies, shape.width
        spread = recipe.seed, recipe.row_spread
        if self.tiers:
            stage = self.tiers.stage(run, self.schema, *rows, len(shape.blocks), *spread)
        else:
            stage = initial_stage(self.representation(encoder), self.schema, *rows, *spread)
        return DLRM(stage, initial_net(shape, dense_slots(self.schema), stage.slots, recipe.dropout))

    def representation(self, encoder: Encoder) -> Representation:
        """Returns the representation of the bundle to be trained."""
        if self.start:
            return self.start.representation(encoder)
        return self.training.representation(self.kind, encoder.vocabularies)


def best_check(history: History) -> Check:
    """Returns the check whose weights were kept."""
    return next(c for c in history.checks if c.step == history.best_step)


def measure_widths(model: DLRM, data: EncodedRows, schema: Schema) -> dict[int | None, Quality]:
    """Measures quality on all rows of `data`: of the widest head (None), and of each nested width."""
    heads = predict_heads(model, data, data.select(TRAIN, VALIDATION, TEST))
    found = [evaluate(p, data.label, data.group, schema.label.negatives_kept) for p in heads]
    return {None: found[-1], **dict(zip(model.net.shape.widths, found, strict=False))}


def named_by_width(
    split: str, quality: Mapping[int | None, Quality]
) -> dict[str, dict[str, float | int | None]]:
    """Returns the figures as a manifest's `metrics` stores them; JSON-serializable."""
    return {with_width(split, width): found.as_dict() for width, found in quality.items()}


def quality_on_test(
    model: DLRM, encoder: Encoder, reader: DataReader, phase: Phase
) -> dict[int | None, Quality]:
    """Measures a model on the test rows of data, see `measure_widths`."""
    splitter = fit_splitter(reader, encoder.schema, phase("split", reader.rows_hint))
    progress = phase("encode", reader.rows_hint)
    with encode(reader, encoder, splitter, (TEST,), progress=progress) as data:
        return measure_widths(model, data, encoder.schema)
