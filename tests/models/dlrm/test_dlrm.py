from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots, initial_net
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import SchemaError
from tests.models.random_batches import random_batch, random_schema, random_table_rows


def random_model(seed: int, interaction: str) -> tuple[DLRM, np.random.Generator, object, dict[str, int]]:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    if interaction == "dot" and len(schema.slots) + bool(schema.dense) < 2:
        assume(False)
    table_rows = random_table_rows(random, schema)
    torch.manual_seed(seed)
    stage = TableStage.initial(schema, table_rows, 4, seed)
    shape = Architecture(width=4, bottom=(5,), top=(6,), interaction=interaction, cross_rank=3)
    model = DLRM(stage, DenseNet(shape, dense_slots(schema), stage.slots))
    return model.eval(), random, schema, table_rows


@given(st.integers(0, 10_000), st.sampled_from(["dot", "cat", "cross"]))
def test_a_ranking_batch_scores_as_its_exploded_rows(seed: int, interaction: str) -> None:
    model, random, schema, table_rows = random_model(seed, interaction)
    batch = random_batch(random, schema, table_rows, 5, contexts=2)
    with torch.inference_mode():
        np.testing.assert_allclose(model(batch), model(batch.exploded()), rtol=1e-5, atol=1e-6)


@given(st.integers(0, 10_000), st.sampled_from(["dot", "cat", "cross"]))
def test_a_row_scores_the_same_alone_and_in_a_batch(seed: int, interaction: str) -> None:
    model, random, schema, table_rows = random_model(seed, interaction)
    batch = random_batch(random, schema, table_rows, 4)
    with torch.inference_mode():
        together = model(batch).numpy().copy()
        for row in range(4):
            at = np.array([row])
            alone = model(type(batch)(batch.context.take(at), batch.candidate.take(at)))
            np.testing.assert_allclose(alone.numpy(), together[row : row + 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("key", ["width", "bottom", "cross_rank"])
def test_a_shape_without_size_is_rejected(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        Architecture.model_validate({key: (0,) if key == "bottom" else 0})


def test_a_single_vector_has_no_pairs_to_multiply() -> None:
    with pytest.raises(SchemaError, match="needs a second feature"):
        DenseNet(Architecture(interaction="dot"), PerBlock(0, 0), PerBlock(0, 1))


def test_the_width_is_the_last_of_nested_widths() -> None:
    shape = Architecture.model_validate({"widths": [4, 8, 32], "top": [256, 64], "cross_rank": 40})
    assert shape.width == 32
    assert shape.blocks == ((0, 4), (4, 8), (8, 32))
    assert [shape.head(w).top for w in shape.widths] == [(32, 16), (64, 16), (256, 64)]
    assert [shape.head(w).cross_rank for w in shape.widths] == [16, 16, 40]
    assert Architecture(width=5).blocks == ((0, 5),)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"widths": [8, 8]}, "widths must increase"),
        ({"widths": [8, 4]}, "widths must increase"),
        ({"widths": [4, 8], "width": 16}, "the last of widths .* must be the width, 16"),
        ({"widths": 8}, "widths"),
        ({"widths": [0, 8]}, "widths"),
    ],
)
def test_widths_that_do_not_nest_are_rejected(given: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Architecture.model_validate(given)


@given(st.integers(0, 10_000))
def test_every_head_reads_the_first_columns_of_one_gather(seed: int) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    table_rows = random_table_rows(random, schema)
    stage = TableStage.initial(schema, table_rows, 6, seed)
    shape = Architecture(widths=(1, 4, 6), bottom=(5,), top=(6,), interaction="cat")
    model = DLRM(stage, initial_net(shape, dense_slots(schema), stage.slots)).eval()
    batch = random_batch(random, schema, table_rows, 5, contexts=2)
    weight = stage.store.weight.detach()
    with torch.inference_mode():
        logits = model.logits(batch)
        for at, head in enumerate(model.net.heads):
            width = shape.widths[at]
            plain = DLRM(TableStage(schema, table_rows, weight[:, :width].contiguous()), head).eval()
            np.testing.assert_allclose(logits[at], plain(batch), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(model(batch), logits[-1])
