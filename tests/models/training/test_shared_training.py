"""Training on shared contexts is training on plain rows: the same losses, the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.packed.packing import pack
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, VALIDATION, fit_splitter
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.representation import Representation, RepresentationKind, initial_stage
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import F32, I64, Batch
from polyrec.models.training.id_dropout import drop_from_large_tables, make_id_dropout
from polyrec.models.training.recipe import Recipe
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Stepper
from polyrec.models.training.trainer import fit, predict

RECIPE = Recipe(batch_rows=256, by_request=True, dense_lr=3e-3, sparse_lr=0.05)


@pytest.fixture(scope="module")
def data(bundle: Bundle, clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, EncodedRows]:
    """The same rows, plain and with contexts shared."""
    schema = bundle.manifest.schema_
    plain = open_data(clicks, schema)
    folder = tmp_path_factory.mktemp("packed") / "p"
    pack(plain, schema, folder)
    splitter = fit_splitter(plain, schema)
    which = (TRAIN, VALIDATION)
    return {
        "plain": encode(plain, bundle.encoder, splitter, which, share=False),
        "found": encode(plain, bundle.encoder, splitter, which),
        "packed": encode(open_data(folder, schema), bundle.encoder, splitter, which),
    }


def fresh(bundle: Bundle, kind: RepresentationKind) -> DLRM:
    schema = bundle.manifest.schema_
    representation = Representation(
        kind=kind, encoding=Encoding(k=32, hidden=(16,)) if kind != "table" else None
    )
    torch.manual_seed(0)
    stage = initial_stage(representation, schema, bundle.encoder.vocabularies, 4, 0)
    shape = Architecture(width=4, bottom=(8,), top=(16,), interaction="dot")
    return DLRM(stage, DenseNet(shape, dense_slots(schema), stage.slots))


class Expanded:
    """Shared rows drawn as plain ones: whatever was decided a context holds for each of its rows."""

    def __init__(self, data: EncodedRows) -> None:
        self.label: F32 = data.label
        self.group: I64 | None = data.group
        self._data = data

    def batch(self, rows: I64) -> Batch:
        return self._data.batch(rows).exploded()


@pytest.mark.parametrize("kind", ["table", "dhe", "hybrid"])
def test_the_loss_curve_and_the_model_are_those_of_plain_training(
    kind: RepresentationKind, bundle: Bundle, data: dict[str, EncodedRows]
) -> None:
    losses, predictions = {}, {}
    for name, encoded in data.items():
        model = fresh(bundle, kind)
        rows = encoded.select(TRAIN)
        losses[name] = [step.loss for step in Stepper(model, Rows(encoded, rows), RECIPE, 40)]
        predictions[name] = predict(model, data["plain"], np.arange(500))
    assert losses["plain"][-1] < losses["plain"][0]
    for name in ("found", "packed"):
        np.testing.assert_allclose(losses[name], losses["plain"], atol=1e-5)
        np.testing.assert_allclose(predictions[name], predictions["plain"], atol=1e-4)


def test_batches_of_whole_requests_share_their_contexts(data: dict[str, EncodedRows], bundle: Bundle) -> None:
    seen: list[Batch] = []

    def look(batch: Batch, random: np.random.Generator) -> Batch:
        seen.append(batch)
        return batch

    packed = data["packed"]
    for _ in Stepper(fresh(bundle, "table"), Rows(packed, packed.select(TRAIN)), RECIPE, 9, look):
        pass
    assert all(batch.context.rows < batch.rows / 5 for batch in seen)
    assert {abs(batch.rows - 256) < 50 for batch in seen[:-1]} == {True}


def test_ids_hidden_in_a_context_are_hidden_from_all_its_rows(
    data: dict[str, EncodedRows], bundle: Bundle
) -> None:
    """Ids are dropped per context, so contexts stay shared; exploded, training is the same."""
    hide = make_id_dropout(bundle.encoder, drop_from_large_tables(bundle.encoder, 0.5, 10))
    assert hide is not None
    shared = data["packed"]
    rows = shared.select(TRAIN)
    one = [step.loss for step in Stepper(fresh(bundle, "table"), Rows(shared, rows), RECIPE, 20, hide)]

    def expanded(batch: Batch, random: np.random.Generator) -> Batch:
        return hide(batch, random).exploded()

    two = [step.loss for step in Stepper(fresh(bundle, "table"), Rows(shared, rows), RECIPE, 20, expanded)]
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_fit_takes_whole_requests_and_ends_at_its_best(bundle: Bundle, data: dict[str, EncodedRows]) -> None:
    encoded = data["packed"]
    recipe = RECIPE.model_copy(update={"epochs": 2, "checks_per_epoch": 2, "average": 0.5})
    model = fresh(bundle, "table")
    history = fit(
        model, Rows(encoded, encoded.select(TRAIN)), Rows(encoded, encoded.select(VALIDATION)), recipe
    )
    assert history.best_step == min(history.checks, key=lambda c: c.log_loss).step
    assert history.checks[-1].log_loss < history.checks[0].log_loss + 0.05


def test_without_groups_requests_cannot_be_drawn(bundle: Bundle, data: dict[str, EncodedRows]) -> None:
    rows = Expanded(data["plain"])
    rows.group = None
    with pytest.raises(DataError, match="by_request: the schema has no group"):
        next(iter(Stepper(fresh(bundle, "table"), Rows(rows, np.arange(10)), RECIPE, 1)))
