from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, VALIDATION, fit_splitter
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots, initial_net
from polyrec.models.dlrm.linear_start import start_linear
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import DataError
from polyrec.models.evaluation.metrics import log_loss
from polyrec.models.schema.batch import I64, Batch
from polyrec.models.training.objective import log_odds
from polyrec.models.training.recipe import Recipe
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import WeightAverage, column_blocks, loss_of_heads
from polyrec.models.training.trainer import (
    FitOptions,
    fit,
    predict,
    predict_heads,
    refit,
)


@pytest.fixture(scope="module")
def data(bundle: Bundle, clicks: Path) -> EncodedRows:
    reader = open_data(clicks, bundle.manifest.schema_)
    return encode(reader, bundle.encoder, fit_splitter(reader, bundle.manifest.schema_), (TRAIN, VALIDATION))


def fresh(bundle: Bundle, seed: int = 0) -> DLRM:
    torch.manual_seed(seed)
    schema = bundle.manifest.schema_
    rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    stage = TableStage.initial(schema, rows, 4, seed)
    shape = Architecture(width=4, bottom=(8,), top=(16,), interaction="cat")
    return DLRM(stage, DenseNet(shape, dense_slots(schema), stage.slots))


def both(data: EncodedRows) -> tuple[Rows, Rows]:
    """Training and validation rows."""
    return Rows(data, data.select(TRAIN)), Rows(data, data.select(VALIDATION))


RECIPE = Recipe(
    epochs=3,
    dense_lr=5e-3,
    sparse_lr=0.2,
    batch_rows=128,
    by_request=False,
    checks_per_epoch=2,
    patience=1,
)


def test_training_beats_the_base_rate_on_validation_rows(bundle: Bundle, data: EncodedRows) -> None:
    model = fresh(bundle)
    validation = data.select(VALIDATION)
    history = fit(model, Rows(data, data.select(TRAIN)), Rows(data, validation), RECIPE)
    label = data.label[validation]
    constant = log_loss(np.full_like(label, data.label[data.select(TRAIN)].mean()), label)
    assert min(c.log_loss for c in history.checks) < 0.9 * constant


@pytest.mark.parametrize("refitted", [False, True])
def test_a_net_begins_nearly_linear_within_a_range_of_rows_alone(
    bundle: Bundle, data: EncodedRows, refitted: bool
) -> None:
    """Steps of size zero leave the weights that a training begins with."""
    training, validation = both(data)

    def began(least: int, beyond: int) -> dict[str, Tensor]:
        model = fresh(bundle)
        still = RECIPE.model_copy(update={"dense_lr": 0.0, "sparse_lr": 0.0, "linear_start": (least, beyond)})
        history = fit(model, training, validation, still)
        if refitted:
            model = fresh(bundle)
            refit(model, training, still, history)
        return dict(model.net.named_parameters())

    linear = fresh(bundle).net
    for head in linear.heads:
        start_linear(head)
        head.output.bias.data.fill_(log_odds(training.base_rate))
    size = training.size
    weights = began(size, size + 1)
    for name, expected in linear.named_parameters():
        torch.testing.assert_close(weights[name], expected)
    for limits in ((0, size), (size + 1, size + 2)):
        assert not torch.equal(began(*limits)["output.weight"], linear.heads[0].output.weight)


@pytest.mark.parametrize("linear", [False, True])
def test_refitting_begins_as_the_validated_training_did(
    bundle: Bundle, data: EncodedRows, linear: bool
) -> None:
    """The validation rows, which it adds, bring the number of rows over a limit of `linear_start`."""
    training, validation = both(data)
    everything = Rows(data, data.select(TRAIN, VALIDATION))
    limits = (0, everything.size) if linear else (everything.size, everything.size + 1)
    still = RECIPE.model_copy(update={"dense_lr": 0.0, "sparse_lr": 0.0, "linear_start": limits})
    model, again = fresh(bundle), fresh(bundle)
    history = fit(model, training, validation, still)
    refit(again, everything, still, history)
    assert history.linear_start is linear
    torch.testing.assert_close(again.net.output.weight, model.net.output.weight)


def test_the_model_is_left_at_its_best_check(bundle: Bundle, data: EncodedRows) -> None:
    model = fresh(bundle)
    validation = data.select(VALIDATION)
    history = fit(model, Rows(data, data.select(TRAIN)), Rows(data, validation), RECIPE)
    best = min(history.checks, key=lambda c: c.log_loss)
    assert history.best_step == best.step
    again = log_loss(predict(model, data, validation), data.label[validation])
    assert again == pytest.approx(best.log_loss, abs=1e-9)


def test_the_same_seed_gives_the_same_model(bundle: Bundle, data: EncodedRows) -> None:
    def weights(seed: int) -> I64:
        model = fresh(bundle, seed)
        fit(model, *both(data), RECIPE.model_copy(update={"seed": seed}))
        return predict(model, data, np.arange(50))

    np.testing.assert_allclose(weights(1), weights(1), rtol=0, atol=1e-6)
    assert not np.array_equal(weights(1), weights(2))


def test_patience_ends_training_that_has_stopped_improving(bundle: Bundle, data: EncodedRows) -> None:
    eager = Recipe(
        epochs=40,
        batch_rows=128,
        by_request=False,
        checks_per_epoch=2,
        patience=2,
        dense_lr=0.02,
        sparse_lr=0.3,
    )
    history = fit(fresh(bundle), *both(data), eager)
    assert history.checks[-1].step < 40 * history.steps_per_epoch
    after = [c for c in history.checks if c.step > history.best_step]
    assert len(after) == 2


def test_refitting_takes_as_many_epochs_as_were_best(bundle: Bundle, data: EncodedRows) -> None:
    history = fit(fresh(bundle), *both(data), RECIPE)
    taken: list[int] = []
    everything = data.select(TRAIN, VALIDATION)
    options = FitOptions(progress=lambda done: taken.append(done.step))
    refit(fresh(bundle), Rows(data, everything), RECIPE, history, options=options)
    per_epoch = RECIPE.steps_per_epoch(everything.size)
    assert len(taken) == round(history.best_step / history.steps_per_epoch * per_epoch)


def test_the_average_is_exponential_and_swaps_in_and_out(bundle: Bundle) -> None:
    model = fresh(bundle)
    weight = model.net.output.bias
    average = WeightAverage(model, rate=0.5)
    expected = weight.item()
    for step in range(1, 30):
        with torch.no_grad():
            weight.fill_(step)
        average.update(step)
        rate = min(0.5, (1 + step) / (10 + step))
        expected = rate * expected + (1 - rate) * step
    average.swap()
    assert weight.item() == pytest.approx(expected, rel=1e-5)
    average.swap()
    assert weight.item() == 29


def test_hidden_batches_are_what_the_model_sees(bundle: Bundle, data: EncodedRows) -> None:
    seen: list[Batch] = []

    def hide(batch: Batch, random: np.random.Generator) -> Batch:
        seen.append(batch)
        return batch

    fit(fresh(bundle), *both(data), RECIPE, hide)
    assert seen
    assert all(b.rows <= 128 for b in seen)


def fresh_nested(bundle: Bundle) -> DLRM:
    torch.manual_seed(0)
    schema = bundle.manifest.schema_
    rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    stage = TableStage.initial(schema, rows, 8, 0)
    shape = Architecture(widths=(2, 8), bottom=(8,), top=(16,), interaction="cat")
    return DLRM(stage, initial_net(shape, dense_slots(schema), stage.slots))


def test_nested_widths_all_learn_and_their_mean_selects(bundle: Bundle, data: EncodedRows) -> None:
    model = fresh_nested(bundle)
    validation = data.select(VALIDATION)
    recipe = RECIPE.model_copy(update={"block_lr": (1.0, 0.5)})
    history = fit(model, Rows(data, data.select(TRAIN)), Rows(data, validation), recipe)
    label = data.label[validation]
    constant = log_loss(np.full_like(label, data.label[data.select(TRAIN)].mean()), label)
    heads = predict_heads(model, data, validation)
    np.testing.assert_array_equal(heads[-1], predict(model, data, validation))
    losses = [log_loss(p, label) for p in heads]
    assert max(losses) < 0.95 * constant
    best = min(c.log_loss for c in history.checks)
    assert np.mean(losses) == pytest.approx(best, abs=1e-9)


def test_narrow_heads_learn_from_the_label_and_the_widest_head() -> None:
    random = np.random.default_rng(0)
    logits = random.standard_normal((3, 7))
    label = random.integers(0, 2, 7).astype(float)
    given = torch.from_numpy(logits).requires_grad_()
    loss = loss_of_heads(given, torch.from_numpy(label), 0.25)
    loss.backward()
    p = 1 / (1 + np.exp(-logits))
    target = np.stack([0.75 * label + 0.25 * p[-1]] * 2 + [label])
    expected = -(target * np.log(p) + (1 - target) * np.log(1 - p)).mean(1).sum()
    assert loss.item() == pytest.approx(expected)
    # the widest head learns from the label only
    np.testing.assert_allclose(given.grad, (p - target) / 7, rtol=1e-6, atol=1e-12)


def test_a_step_size_for_each_width_or_none(bundle: Bundle) -> None:
    model = fresh_nested(bundle)
    assert [b.lr for b in column_blocks(model, RECIPE)] == [1.0, 1.0]
    with pytest.raises(DataError, match="block_lr: 3 step sizes, but the model has 2 widths"):
        column_blocks(model, RECIPE.model_copy(update={"block_lr": (1.0, 0.5, 0.2)}))
