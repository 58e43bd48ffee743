"""Two workers take the steps of one: the same gradients, losses and weights, in every scheme."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.training.equivalence import InPrecision, dense_gradients
from polyrec.cli.train.train_workers import local_environment
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.split import TRAIN, VALIDATION
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import DataError
from polyrec.models.training.optimizer import RowWiseAdagrad
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Stepper
from polyrec.models.training.trainer import fit
from polyrec.models.training.workers.workers import require_cuts
from tests.models.training.workers.two_processes import (
    MOVES,
    PLANNED,
    RECIPE,
    SETTINGS,
    STEPS,
    data_of,
    fresh,
    look_ups,
    moved_weight,
)

ROOT = Path(__file__).parents[4]
Found = dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]


@pytest.fixture(scope="module")
def found(bundle: Bundle, bundle_dir: Path, clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """By scheme: what each of two workers found."""
    out = tmp_path_factory.mktemp("workers")
    script = Path(__file__).with_name("two_processes.py")
    environment = os.environ | local_environment(2) | {"PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, script, bundle_dir, clicks, out], env=environment | {"RANK": str(rank)}
        )
        for rank in range(2)
    ]
    assert [process.wait(120) for process in started] == [0, 0]
    return {
        name: tuple(dict(np.load(out / f"{name}.{rank}.npz")) for rank in range(2))  # type: ignore[misc]
        for name in (*SETTINGS, "moves")
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_of_a_step_are_those_of_one_worker(
    name: str, found: Found, bundle: Bundle, clicks: Path
) -> None:
    data = data_of(bundle, clicks)
    double, model = InPrecision(data, np.float64), fresh(bundle).double()
    rows = data.select(TRAIN)[:256]
    loss = double.loss(model, double.batch(rows), rows)
    loss.backward()  # type: ignore[no-untyped-call]
    (weight,) = model.stage.sparse_parameters()
    assert weight.grad is not None
    for of_worker in found[name]:
        np.testing.assert_allclose(of_worker["loss"], loss.item(), rtol=1e-12)
        for key, gradient in (dense_gradients(model) | {"rows": weight.grad.to_dense()}).items():
            expected = gradient.numpy()
            scale = np.abs(expected).max()
            np.testing.assert_allclose(of_worker[key], expected, rtol=1e-6, atol=1e-12 * scale, err_msg=key)


class Batches:
    """A source whose windows are given batches, to replay steps in their order."""

    def __init__(self, rows: Rows, batches: list[np.ndarray]) -> None:
        self.size, self.base_rate = rows.size, rows.base_rate
        self._windows = [Rows(rows.data, batch) for batch in batches]

    def windows(self, first: int = 0) -> Iterator[Rows]:
        yield from self._windows[first:]


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_lead_to_the_weights_of_one_worker(
    name: str, found: Found, bundle: Bundle, clicks: Path
) -> None:
    first, second = found[name]
    data, model = data_of(bundle, clicks), fresh(bundle)
    cuts = first["cuts"]
    batches = [first["drawn"][a:b] for a, b in pairwise(cuts)]
    source = Batches(Rows(data, data.select(TRAIN)), batches)
    whole = RECIPE.model_copy(update={"batch_rows": 1 << 20})
    losses = [step.loss for step in Stepper(model, source, whole, STEPS)]
    np.testing.assert_allclose(first["losses"], losses, rtol=1e-4)
    for key, weight in model.state_dict().items():
        np.testing.assert_array_equal(first[f"weight.{key}"], second[f"weight.{key}"])
        np.testing.assert_allclose(first[f"weight.{key}"], weight.numpy(), rtol=1e-2, atol=2e-4, err_msg=key)


def test_one_order_of_rows_whatever_is_exchanged(found: Found, bundle: Bundle, clicks: Path) -> None:
    data = data_of(bundle, clicks)
    model, training = fresh(bundle), Rows(data, data.select(TRAIN))
    history = fit(model, training, Rows(data, data.select(VALIDATION)), RECIPE)
    for name in ("every", "distinct", "hotline", "hotline, followed", "hotline, planned"):
        for of_worker in found[name]:
            np.testing.assert_allclose(of_worker["checks"], [c.log_loss for c in history.checks], rtol=1e-3)
    np.testing.assert_array_equal(found["fae"][0]["checks"], found["fae"][1]["checks"])


def test_rows_move_between_replicas_and_owners_with_their_state_to_the_bit(found: Found) -> None:
    weight = nn.Parameter(moved_weight())
    optimizer = RowWiseAdagrad([weight], 0.1)
    for move in range(MOVES):
        ids, gradients_ = zip(*(look_ups(move, rank) for rank in range(2)), strict=True)
        weight.grad = torch.sparse_coo_tensor(
            torch.from_numpy(np.concatenate(ids)).unsqueeze(0),
            torch.from_numpy(np.concatenate(gradients_)),
            weight.shape,
            check_invariants=False,
        )
        optimizer.step()
    (squares,) = optimizer.accumulators()
    for of_worker in found["moves"]:
        np.testing.assert_array_equal(of_worker["rows"], weight.detach().numpy())
        np.testing.assert_array_equal(of_worker["squares"], np.concatenate((squares[::2], squares[1::2])))
        assert of_worker["entered"] > 20


def test_a_switch_copies_nothing_that_did_not_change(found: Found) -> None:
    for of_worker in found["moves"]:
        # the numbers of rows that follow: of changed rows, of their values and of their accumulators
        assert of_worker["sent_unchanged"] == 3 * 8


def test_a_tracker_finds_rows_to_replicate_while_training(found: Found) -> None:
    assert found["fae, followed"][0]["hot_steps"] > 0
    replicated = [of_worker["replicated"] for of_worker in found["hotline, followed"]]
    assert replicated[0].size > 100
    np.testing.assert_array_equal(*replicated)


@pytest.mark.parametrize("name", ["fae, planned", "hotline, planned"])
def test_planned_rows_are_replicated_and_the_special_ones(name: str, found: Found, bundle: Bundle) -> None:
    table = fresh(bundle).stage
    assert isinstance(table, TableStage)
    planned = set()
    for tab, vocabulary in bundle.encoder.vocabularies.items():
        ranks = {*range(PLANNED[tab]), vocabulary.oov_rank, vocabulary.missing_rank}
        planned |= {table.rows.base[tab] + rank for rank in ranks}
    for of_worker in found[name]:
        assert of_worker["replicated"].tolist() == sorted(planned)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"user_id": 10**6}, "the plan replicates 1,000,000 of the"),
        ({"nobody": 1}, "the plan is of the tables .*nobody, the model has user_id"),
    ],
)
def test_a_plan_of_other_tables_is_refused(changes: dict[str, int], says: str, bundle: Bundle) -> None:
    with pytest.raises(DataError, match=says):
        require_cuts(PLANNED | changes, bundle.encoder.vocabularies)


def test_hot_batches_and_distinct_rows_send_less(found: Found) -> None:
    sent = {name: int(found[name][0]["sent"]) for name in SETTINGS}
    assert sent["distinct"] < sent["every"]
    assert sent["fae"] < sent["every"]
    assert 0 < found["fae"][0]["hot_steps"] < STEPS
