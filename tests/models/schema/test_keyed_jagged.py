"""The inverse keyed jagged form against torchrec's KeyedJaggedTensor, where torchrec is installed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from polyrec.models.schema.distinct import Column, Jagged
from polyrec.models.schema.features import Columns, columns_of, deduplicate
from polyrec.models.schema.schema import Categorical, Label, Schema, Split
from tests.models.random_batches import random_batch, random_table_rows

SCHEMA = Schema(
    name="keyed",
    categorical=(
        Categorical(name="user", role="context"),
        Categorical(name="filters", role="context", pooling="sum"),
        Categorical(name="recent", role="context", table="item", pooling="sum"),
        Categorical(name="item"),
    ),
    label=Label(column="clicked"),
    split=Split(rule="hash", columns=("item",)),
)
WIDTH = 4


@pytest.fixture(scope="module")
def torchrec() -> Any:
    with warnings.catch_warnings():
        # it warns of its own deprecations while it is imported
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchrec", reason="torchrec is not installed (docs/recd.md)")


def jagged(column: Column) -> Jagged:
    """A feature as torchrec has it: an id is a list of one."""
    return column if isinstance(column, Jagged) else Jagged(column, np.arange(column.size + 1))


def keyed(torchrec: Any, columns: Columns) -> Any:
    """The KeyedJaggedTensor of some features: values and lengths, feature by feature."""
    lists = [jagged(c) for c in columns.values()]
    return torchrec.KeyedJaggedTensor(
        keys=list(columns),
        values=torch.from_numpy(np.concatenate([c.values for c in lists])),
        lengths=torch.from_numpy(np.concatenate([c.lengths for c in lists])),
    )


@pytest.mark.parametrize("seed", range(5))
def test_every_group_is_a_keyed_jagged_tensor_with_its_inverse(torchrec: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    table_rows = random_table_rows(random, SCHEMA)
    batch = random_batch(random, SCHEMA, table_rows, 40, contexts=7)
    columns = columns_of(batch, SCHEMA)
    form = deduplicate(columns, [["user", "filters", "recent"]])
    (group,) = form.groups
    assert group.inverse.max() < 7
    plain, unique = keyed(torchrec, columns), keyed(torchrec, group.columns)
    assert plain.stride() == 40
    assert unique.stride() == group.inverse.max() + 1
    for name in group.columns:
        lists = [t.tolist() for t in unique[name].to_dense()]
        assert [lists[i] for i in group.inverse] == [t.tolist() for t in plain[name].to_dense()]
    assert [t.tolist() for t in plain["item"].to_dense()] == [[i] for i in form.ungrouped["item"].tolist()]


@pytest.mark.parametrize("seed", range(5))
def test_pooling_distinct_rows_and_then_indexing_is_pooling_all_rows(torchrec: Any, seed: int) -> None:
    """Values and gradients: torchrec's own embedding bags on the distinct rows of a group."""
    random = np.random.default_rng(seed)
    table_rows = random_table_rows(random, SCHEMA)
    columns = columns_of(random_batch(random, SCHEMA, table_rows, 40, contexts=7), SCHEMA)
    (group,) = deduplicate(columns, [["user", "filters", "recent"]]).groups
    features = list(group.columns)
    bags = torchrec.EmbeddingBagCollection(
        tables=[
            torchrec.EmbeddingBagConfig(
                name=f"t_{n}", embedding_dim=WIDTH, num_embeddings=30, feature_names=[n]
            )
            for n in features
        ]
    )
    all_rows = bags(keyed(torchrec, {n: columns[n] for n in features})).values()
    distinct = bags(keyed(torchrec, group.columns)).values()
    indexed = distinct.index_select(0, torch.from_numpy(group.inverse))
    torch.testing.assert_close(indexed, all_rows)
    weight = torch.from_numpy(random.standard_normal(all_rows.shape).astype(np.float32))
    parameters = list(bags.parameters())
    wanted = torch.autograd.grad((all_rows * weight).sum(), parameters)
    got = torch.autograd.grad((indexed * weight).sum(), parameters)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)
