"""One of two processes of test_workers.py: takes steps in every scheme and saves the results.

python two_processes.py BUNDLE CLICKS OUT, in the environment of a worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.training.equivalence import InPrecision, sharded_gradients
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, VALIDATION, fit_splitter
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.embeddings.table import TableStage
from polyrec.models.schema.batch import I64
from polyrec.models.training.optimizer import RowWiseAdagrad
from polyrec.models.training.recipe import Recipe
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Stepper
from polyrec.models.training.trainer import FitOptions, fit
from polyrec.models.training.workers.group import WorkerGroup
from polyrec.models.training.workers.row_exchange import WorkerRows
from polyrec.models.training.workers.settings import WorkerSettings
from polyrec.models.training.workers.stage import ShardedStage
from polyrec.models.training.workers.workers import Workers

Arrays = dict[str, NDArray[Any]]

WIDTH = 4
HOT_BYTES = 250 * 4 * WIDTH
PLANNED = {
    **{"user_id": 90, "platform": 0, "city": 6, "device": 3, "item": 120},
    **{"filters": 5, "position": 20, "seen": 2},
}
"""Rows to replicate by table, as a training plan says them; these are of no order of all rows."""
SETTINGS = {
    "every": WorkerSettings("plain", distinct=False),
    "distinct": WorkerSettings("plain"),
    "fae": WorkerSettings("fae", hot_bytes=HOT_BYTES),
    "hotline": WorkerSettings("hotline", hot_bytes=HOT_BYTES),
    "fae, followed": WorkerSettings("fae", hot_bytes=HOT_BYTES, follow=True),
    "hotline, followed": WorkerSettings("hotline", hot_bytes=HOT_BYTES, follow=True),
    "fae, planned": WorkerSettings("fae", replicated=PLANNED),
    "hotline, planned": WorkerSettings("hotline", replicated=PLANNED),
}
RECIPE = Recipe(batch_rows=256, by_request=True, sparse_lr=0.05, epochs=2, patience=100, checks_per_epoch=2)
STEPS = 30


def data_of(bundle: Bundle, clicks: Path) -> EncodedRows:
    reader = open_data(clicks, bundle.manifest.schema_)
    return encode(reader, bundle.encoder, fit_splitter(reader, bundle.manifest.schema_), (TRAIN, VALIDATION))


def fresh(bundle: Bundle) -> DLRM:
    torch.manual_seed(0)
    schema = bundle.manifest.schema_
    rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    stage = TableStage.initial(schema, rows, WIDTH, 0)
    shape = Architecture(width=WIDTH, bottom=(8,), top=(16,), interaction="dot")
    return DLRM(stage, DenseNet(shape, dense_slots(schema), stage.slots))


def stage_of(model: DLRM) -> ShardedStage:
    assert isinstance(model.stage, ShardedStage)
    return model.stage


def step_gradients(bundle: Bundle, workers: Workers, training: Rows) -> Arrays:
    """The gradients of the first 256 rows in fp64, summed over the workers."""
    data = training.data
    assert isinstance(data, EncodedRows)
    model = workers.sharded(fresh(bundle).double(), bundle.encoder.vocabularies)
    Stepper(model, training, RECIPE, STEPS, workers=workers)
    double, chosen = InPrecision(data, np.float64), training.rows[:256]
    loss, found = sharded_gradients(workers, model, double, chosen, data.group, hot=False)
    return {key: value.numpy() for key, value in found.items()} | {"loss": np.array(loss)}


def steps(bundle: Bundle, workers: Workers, training: Rows) -> Arrays:
    """The weights after some steps, the losses, and which rows were drawn."""
    model = workers.sharded(fresh(bundle), bundle.encoder.vocabularies)
    stage, sent, drawn, losses, hot = stage_of(model), workers.group.sent_bytes, [], [], 0
    draw = workers.epoch

    def noted(window: Rows, group: I64 | None, rows: int, random: np.random.Generator) -> Iterator[I64]:
        for batch in draw(window, group, rows, random):
            drawn.append(batch)
            yield batch

    workers.epoch = noted  # type: ignore[method-assign]
    for step in Stepper(model, training, RECIPE, STEPS, workers=workers):
        losses.append(step.loss)
        hot += stage.local
    sent = workers.group.sent_bytes - sent
    workers.settle()
    whole = workers.whole(model, fresh(bundle).stage)
    weights = {f"weight.{name}": weight.numpy() for name, weight in whole.state_dict().items()}
    cuts = np.cumsum([0] + [batch.size for batch in drawn[:STEPS]])
    return weights | {
        "losses": np.array(losses),
        "drawn": np.concatenate(drawn[:STEPS]),
        "cuts": cuts,
        "sent": np.array(sent),
        "hot_steps": np.array(hot),
        "replicated": np.sort(stage.rows.hot_rows[stage.rows.hot_rows >= 0]),
    }


MOVED_ROWS, MOVED_WIDTH, MOVES = 60, 4, 30


def moved_weight() -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(1).normal(size=(MOVED_ROWS, MOVED_WIDTH)).astype(np.float32)
    )


def look_ups(move: int, rank: int) -> tuple[I64, NDArray[np.float32]]:
    """Rows that a worker looks up in a step, and gradients that are whole numbers: their sums are exact."""
    random = np.random.default_rng((2, move, rank))
    return random.integers(MOVED_ROWS, size=25), random.integers(-9, 10, (25, MOVED_WIDTH)).astype(np.float32)


def moves(group: WorkerGroup) -> Arrays:
    """The rows and accumulators after steps between which other rows are replicated, or none are used."""
    rows = WorkerRows(group, moved_weight(), max_hot_rows=20)
    optimizer = RowWiseAdagrad([rows.shard, rows.replicas], 0.1)
    own, replicated = optimizer.accumulators()
    pairs = [(rows.shard.data, rows.replicas.data), (own, replicated)]
    random, entered = np.random.default_rng(3), 0
    for move in range(MOVES):
        if move % 3 == 0:
            wanted = random.choice(MOVED_ROWS, random.integers(21), replace=False)
            entered += rows.replicate(wanted, pairs)
        if move % 7 == 6:
            rows.switch(not rows.use_hot, pairs)
        wanted, gradients = look_ups(move, group.rank)
        fetched = rows.fetch(wanted)
        fetched.values.grad = torch.zeros_like(fetched.values)
        fetched.values.grad.index_add_(0, torch.from_numpy(fetched.position), torch.from_numpy(gradients))
        rows.push([fetched])
        optimizer.step()
    rows.switch(False, pairs)
    sent = group.sent_bytes
    rows.switch(True, pairs)
    sent = group.sent_bytes - sent
    squares = torch.cat(group.gather(own))
    found = {"rows": rows.whole().numpy(), "squares": squares.numpy()}
    return found | {"entered": np.array(entered), "sent_unchanged": np.array(sent)}


def worker(bundle: Bundle, clicks: Path, out: Path) -> None:
    data = data_of(bundle, clicks)
    training = Rows(data, data.select(TRAIN))
    group = WorkerGroup.join()
    for name, settings in SETTINGS.items():
        found = step_gradients(bundle, Workers(group, settings), training)
        found |= steps(bundle, Workers(group, settings), training)
        workers = Workers(group, settings)
        model = workers.sharded(fresh(bundle), bundle.encoder.vocabularies)
        options = FitOptions(workers=workers)
        history = fit(model, training, Rows(data, data.select(VALIDATION)), RECIPE, options=options)
        found["checks"] = np.array([c.log_loss for c in history.checks])
        np.savez(out / f"{name}.{group.rank}.npz", **found)
    np.savez(out / f"moves.{group.rank}.npz", **moves(group))
    group.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    worker(load_bundle(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]))
