"""Searches for a recipe by successive halving over random changes of a base recipe, on validation rows.

Every candidate is trained on a small share of the training rows, the best third of them again on three times
as many, and so on, until the last rung uses all rows (Jamieson and Talwalkar, Non-stochastic best arm
identification and hyperparameter optimization, AISTATS'16; a bracket of Hyperband). A share emulates a
smaller data set: ids that it lacks are out of vocabulary. The base recipe is in every rung, so that the
choice is never worse on validation rows. The test rows are not read.

The candidates depend only on the seed; the time limit determines how many there are and which are not run.
Everything is logged, and the same number of candidates gives the same choice if time suffices.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from polyrec.models.data.encoded import EncodedRows
from polyrec.models.data.split import TRAIN, VALIDATION, fit_splitter
from polyrec.models.errors import DataError, PolyrecError
from polyrec.models.evaluation.metrics import row_losses
from polyrec.models.files import write_text
from polyrec.models.schema.batch import F64, I64, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.training.id_dropout import make_id_dropout
from polyrec.models.training.pipeline import Learner, best_check
from polyrec.models.training.recipe import RecipeFile
from polyrec.models.training.source import Rows, TrainingRows
from polyrec.models.training.trainer import StepReport, predict
from polyrec.models.training.unseen import count_lookups

KEEP = 3
"""One in KEEP candidates goes on to the next rung, which has KEEP times the rows."""
RUNGS = 3
MAX_CANDIDATES = 81
MAX_CHANGES = 4
MIN_GAIN = 2.0
"""Standard errors by which a candidate must be better than the base."""
FIRST_RUNG = 1 / (RUNGS + 1)
"""Share of the time after which the first rung takes no further candidates. Every rung costs about as much: a
KEEP-th of the trainings, KEEP times as long; the rest is for survivors that are larger than the average."""
Changes = dict[str, dict[str, Any]]
"""Keys of a training that are replaced: `architecture` or `recipe` -> key -> value."""
CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "architecture": {
        "width": (8, 16, 32, 64),
        "interaction": ("cross", "cat", "dot"),
        "cross_layers": (1, 2, 3),
        "cross_rank": (16, 64, 128),
        "top": ((128, 64), (256,), (512, 256), (256, 128, 64)),
    },
    "recipe": {
        "dense_lr": (5e-4, 1e-3, 2e-3),
        "sparse_lr": (0.05, 0.1, 0.2, 0.4),
        "epochs": (1, 2, 3, 5),
        "final_lr": (0.1, 0.5),
        "dropout": (0.0, 0.1, 0.3),
        "row_decay": (0.0, 0.02, 0.1),
        "hide": ("unseen", 0.0, 0.5, 0.9),
    },
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One training of the search.

    share: share of the training rows. candidate: 0 is the base recipe. changes: keys of the base recipe that
    are replaced.
    status: `done`, `stopped` or `not run` for lack of time, or `failed: ` and the reason.
    log_loss, auc: on the validation rows at the best check, after `epochs`.
    gain: mean loss of the base in the same rung minus this one's. gain_error: its standard error.
    """

    rung: int
    share: float
    candidate: int
    changes: Changes
    status: str
    log_loss: float | None = None
    auc: float | None = None
    epochs: float | None = None
    gain: float | None = None
    gain_error: float | None = None
    seconds: float = 0.0

    @property
    def changed(self) -> dict[str, Any]:
        """The replaced keys of all parts; empty for the base recipe."""
        return {key: value for values in self.changes.values() for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class Search:
    """The result: the chosen recipe, and every trial in order. candidates: number of candidates in the
    first rung.
    """

    training: RecipeFile
    trials: tuple[Trial, ...]
    candidates: int
    chosen: Trial

    def record(self) -> dict[str, Any]:
        """Returns a summary for a bundle's manifest."""
        trials = [{k: v for k, v in asdict(t).items() if v is not None} for t in self.trials]
        return {"candidates": self.candidates, "chosen": self.chosen.candidate, "trials": trials}


class _OutOfTime(Exception):
    pass


def search_recipe(
    learner: Learner,
    seconds: float,
    candidates: int | None = None,
    log: Callable[[Trial], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Search:
    """Finds the recipe with the lowest validation log-loss among the learner's and changes of it.

    seconds: time limit, which one optimizer step or check may exceed.
    candidates: number in the first rung, including the base; None: as many as FIRST_RUNG of the time allows.
    log: called with each trial.
    """
    end = clock() + seconds
    base = learner.training
    splitter = fit_splitter(learner.reader, learner.schema, learner.phase("split", learner.reader.rows_hint))
    encoder = learner.encoder_of(splitter, (TRAIN,))
    with learner.encoded(encoder, splitter, (TRAIN, VALIDATION)) as data:
        trials = _Trials(learner, encoder, data, end, log, clock)
        changes = [{}, *draw_changes(base, (candidates or MAX_CANDIDATES) - 1, base.recipe.seed)]
        first: list[Trial] = []
        full = end - (1 - FIRST_RUNG) * seconds
        for candidate, change in enumerate(changes):
            if candidates is None and len(first) > 1 and clock() > full:
                break
            first.append(trials.run(0, candidate, change))
        rungs = [first]
        for rung in range(1, RUNGS):
            rungs.append([trials.run(rung, c, changes[c]) for c in survivors(rungs[-1])])
    chosen = choose(rungs)
    return Search(changed(base, chosen.changes), tuple(chain(*rungs)), len(first), chosen)


class _Trials:
    """Trains candidates on shares of the training rows, and compares each with the base of its rung.

    data: the training and validation rows. end: time by `clock` at which a training is stopped.
    Raises DataError if a part has no rows or only one class.
    """

    def __init__(
        self,
        learner: Learner,
        encoder: Encoder,
        data: EncodedRows,
        end: float,
        log: Callable[[Trial], None],
        clock: Callable[[], float],
    ) -> None:
        self._learner, self._encoder, self._data = learner, encoder, data
        self._end, self._log, self._clock = end, log, clock
        self._validation = data.select(VALIDATION)
        self._shuffled = _shuffled(data.select(TRAIN), data.group, learner.training.recipe.seed)
        if not self._validation.size or not self._shuffled.size:
            raise DataError(f"{learner.reader.path}: the split leaves no train or no validation rows")
        learner.require_classes(Rows(data, self._shuffled), Rows(data, self._validation))
        self._base_losses: dict[int, F64] = {}

    def run(self, rung: int, candidate: int, changes: Changes) -> Trial:
        """Trains a candidate, logs the trial and returns it; if it fails or is stopped, it has no figures."""
        share = float(KEEP) ** (rung + 1 - RUNGS)
        trial = Trial(rung, share, candidate, changes, "not run")
        begin = self._clock()
        if begin < self._end:
            try:
                trial = self._trained(trial)
            except _OutOfTime:
                trial = dataclasses.replace(trial, status="stopped")
            except PolyrecError as e:
                trial = dataclasses.replace(trial, status=f"failed: {e}")
            trial = dataclasses.replace(trial, seconds=round(self._clock() - begin, 2))
        self._log(trial)
        return trial

    def _trained(self, trial: Trial) -> Trial:
        data, validation = self._data, self._validation
        rows = np.sort(self._shuffled[: max(1, round(trial.share * self._shuffled.size))])
        part = data if trial.share == 1 else FewerRows(self._encoder, data, rows)
        training = changed(self._learner.training, trial.changes)
        own = dataclasses.replace(self._learner, training=training, progress=self._progress)
        fitted = own.fit(self._encoder, Rows(part, rows), Rows(part, validation))
        best = best_check(fitted.history)
        losses = row_losses(predict(fitted.model, part, validation), data.label[validation])
        gain = error = None
        if not trial.candidate:
            self._base_losses[trial.rung] = losses
        elif trial.rung in self._base_losses:
            request = None if data.group is None else data.group[validation]
            gain, error = mean_and_error(self._base_losses[trial.rung] - losses, request)
        return dataclasses.replace(
            trial,
            status="done",
            log_loss=best.log_loss,
            auc=best.auc,
            epochs=best.epoch,
            gain=gain,
            gain_error=error,
        )

    def _progress(self, report: StepReport) -> None:
        if self._clock() > self._end:
            raise _OutOfTime
        if self._learner.progress:
            self._learner.progress(report)


def survivors(rung: list[Trial]) -> list[int]:
    """Returns the candidates of the next rung: the base, then the best ones in order."""
    done = sorted((t for t in rung if t.log_loss is not None), key=lambda t: (t.log_loss, t.candidate))
    best = [t.candidate for t in done if t.candidate][: max(1, len(rung) // KEEP - 1)]
    return [0, *best]


def choose(rungs: list[list[Trial]]) -> Trial:
    """Returns the best trial of the last rung that has several finished candidates; else the base's.

    A candidate replaces the base only if its gain exceeds MIN_GAIN standard errors: the best of many on few
    validation rows is often just lucky.
    """
    for rung in reversed(rungs):
        done = [t for t in rung if t.log_loss is not None]
        if len(done) > 1:
            good = [
                t for t in done if t.gain is None or t.gain_error is None or t.gain > MIN_GAIN * t.gain_error
            ]
            return min(good or done[:1], key=lambda t: (t.log_loss, t.candidate))
    return rungs[0][0]


def mean_and_error(differences: F64, group: I64 | None) -> tuple[float, float]:
    """Returns the mean of differences, float64 [rows], and its standard error, clustered by group."""
    mean = float(differences.mean())
    residual = differences - mean
    if group is not None:
        _, own = np.unique(group, return_inverse=True)
        residual = np.bincount(own, residual).astype(np.float64)
    return mean, float(np.sqrt(np.square(residual).sum()) / differences.size)


def changed(training: RecipeFile, changes: Mapping[str, Mapping[str, Any]]) -> RecipeFile:
    """Returns a copy with keys of architecture and recipe replaced."""
    raw = training.model_dump()
    for part, values in changes.items():
        raw[part] |= values
    return RecipeFile.model_validate(raw)


def draw_changes(training: RecipeFile, count: int, seed: int) -> list[Changes]:
    """Draws `count` different sets of one to MAX_CHANGES changes of a recipe.

    Returns fewer if there are not enough. The first n for a seed are the same for every count. Nested widths
    keep their width.
    """
    raw = training.model_dump()
    keys = [
        (part, key)
        for part, choices in CHOICES.items()
        for key in choices
        if not (key == "width" and training.architecture.widths)
    ]
    random = np.random.default_rng(seed)
    found: list[Changes] = []
    for _ in range(20 * count):
        if len(found) == count:
            break
        one: Changes = {}
        for k in np.sort(random.permutation(len(keys))[: random.integers(1, MAX_CHANGES + 1)]):
            part, key = keys[k]
            others = [v for v in CHOICES[part][key] if v != raw[part][key]]
            one.setdefault(part, {})[key] = others[random.integers(len(others))]
        if one not in found:
            found.append(one)
    return found


def _shuffled(rows: I64, group: I64 | None, seed: int) -> I64:
    """Returns the rows in random order, keeping requests together; a prefix is a smaller data set."""
    random = np.random.default_rng(seed)
    if group is None:
        return random.permutation(rows)
    _, request = np.unique(group[rows], return_inverse=True)
    order = random.permutation(int(request.max(initial=-1)) + 1)
    return rows[np.argsort(order[request], kind="stable")]


class FewerRows:
    """Encoded rows as seen by a model trained on some of them: other ids are out of vocabulary.

    An id is known if these rows contain it at least min_count times, as the schema requires.
    """

    def __init__(self, encoder: Encoder, data: TrainingRows, rows: I64) -> None:
        self.label, self.group = data.label, data.group
        self._data = data
        counts = count_lookups(encoder, Rows(data, rows))
        tables: dict[str, I64] = {}
        for f in encoder.schema.categorical:
            if f.name in counts:
                tables[f.table_name] = tables.get(f.table_name, 0) + counts[f.name]
        unknown = {}
        for f in encoder.schema.categorical:
            if f.name in counts:
                unknown[f.name] = (tables[f.table_name] < f.min_count).astype(np.float32)
                unknown[f.name][encoder.vocabulary(f).missing_rank] = 0.0
        self._hide = make_id_dropout(encoder, unknown)
        self._random = np.random.default_rng(0)

    def batch(self, rows: I64) -> Batch:
        """Returns a batch of the given rows."""
        batch = self._data.batch(rows)
        return self._hide(batch, self._random) if self._hide else batch


@dataclass(frozen=True, slots=True)
class SearchFiles:
    """Files beside a bundle: `<bundle>.search.jsonl`, one trial per line, and `<bundle>.recipe.yaml`."""

    log: Path
    recipe: Path

    @staticmethod
    def beside(out: str | Path) -> SearchFiles:
        """Returns the files for a bundle to be written at `out`, and empties the log."""
        folder, name = Path(out).absolute().parent, Path(out).name
        folder.mkdir(parents=True, exist_ok=True)
        files = SearchFiles(folder / f"{name}.search.jsonl", folder / f"{name}.recipe.yaml")
        files.log.write_text("", encoding="utf-8")
        return files

    def add(self, trial: Trial) -> None:
        """Appends a trial to the log."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(asdict(trial)) + "\n")

    def write_recipe(self, search: Search, data: str) -> None:
        """Writes the chosen recipe for `polyrec train --recipe`. data: names the data in the file's
        comment.
        """
        done = sum(t.status == "done" for t in search.trials)
        loss = search.chosen.log_loss
        head = f"# Chosen on the validation rows of {data}: {search.candidates} candidates, {done} trainings"
        if loss is not None:
            head += f"; log-loss {loss:.5f} on {search.chosen.share:.0%} of the training rows"
        text = yaml.safe_dump(
            search.training.model_dump(mode="json"), sort_keys=False, default_flow_style=None
        )
        write_text(self.recipe, f"{head}.\n{text}")
