from __future__ import annotations

from typing import Any

import pytest

from polyrec.models.errors import SchemaError
from polyrec.models.schema.renaming import check_same_features, check_same_order
from polyrec.models.schema.schema import Schema


def categorical(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "integer", "cardinality": 7, "oov": "refuse", "pooling": "sum"} | more


def schema(**changes: Any) -> Schema:
    content: dict[str, Any] = {
        "name": "ads",
        "dense": [{"name": "d0"}, {"name": "d1"}],
        "categorical": [
            categorical("c0"),
            categorical("c1", table="shared", cardinality=9),
            categorical("c2", table="shared", cardinality=9),
        ],
        "label": {"column": "label"},
        "split": {"rule": "column", "columns": ["split"]},
    }
    return Schema.model_validate(content | changes)


def test_names_roles_transforms_and_label_may_differ() -> None:
    now = schema(
        dense=[{"name": "age", "role": "context", "transform": ["log1p"]}, {"name": "price"}],
        categorical=[
            categorical("user", role="context", max_length=3),
            categorical("item", table="items", cardinality=9),
            categorical("like", table="items", cardinality=9),
        ],
        label={"column": "clicked", "negatives_kept": 0.5},
        group="request",
        split={"rule": "time", "columns": ["at"]},
    )
    assert check_same_features(schema(), now) == {"c0": "user", "shared": "items"}


@pytest.mark.parametrize(
    ("changes", "offense"),
    [
        ({"dense": [{"name": "d0"}]}, "it has 1 dense features, the model has 2"),
        ({"categorical": [categorical("c0")]}, "it has 1 categorical features, the model has 3"),
        (
            {"dense": [{"name": "d0"}, {"name": "age", "transform": ["standardise"]}]},
            "feature 'age': its mean and deviation in training are unknown",
        ),
        (
            {"categorical": [categorical("user", cardinality=8), *schema().categorical[1:]]},
            "feature 'user' has cardinality 8, the model's 'c0' 7",
        ),
        (
            {"categorical": [categorical("user", pooling="mean"), *schema().categorical[1:]]},
            "feature 'user' has pooling mean, the model's 'c0' sum",
        ),
        (
            {"categorical": [*schema().categorical[:2], categorical("c2", cardinality=9)]},
            "feature 'c2' reads table 'c2', the model's 'c2' the one that is called 'shared' here",
        ),
    ],
)
def test_another_model_is_named(changes: dict[str, Any], offense: str) -> None:
    with pytest.raises(SchemaError) as error:
        check_same_features(schema(), schema(**changes))
    assert str(error.value).startswith("schema 'ads' does not describe this model: ")
    assert offense in str(error.value)


def test_tables_that_were_apart_cannot_become_one() -> None:
    apart = schema(categorical=[categorical("c0"), categorical("c1"), categorical("c2")])
    one = schema(categorical=[categorical(f"c{i}", table="all") for i in range(3)])
    with pytest.raises(SchemaError, match="it has 1 tables, the model has 3"):
        check_same_features(apart, one)


@pytest.mark.parametrize(
    ("changes", "offense"),
    [
        (
            {"dense": [{"name": "d0"}, {"name": "d1", "role": "context"}]},
            "the model reads 'd0' where these roles put 'd1'",
        ),
        (
            {
                "categorical": [
                    *schema().categorical[:2],
                    categorical("c2", table="shared", cardinality=9, role="context"),
                ]
            },
            "the model reads 'c0' where these roles put 'c2'",
        ),
        (
            {
                "categorical": [
                    *schema().categorical[:2],
                    categorical("c2", table="shared", cardinality=9, pooling=None),
                ]
            },
            "the model reads 'c0' where these roles put 'c2'",
        ),
    ],
)
def test_roles_that_move_inputs_are_named(changes: dict[str, Any], offense: str) -> None:
    now = schema(**changes)
    check_same_features(schema(), now, poolings=False)
    with pytest.raises(SchemaError) as error:
        check_same_order(schema(), now)
    assert offense in str(error.value)


def test_roles_that_move_nothing_are_taken() -> None:
    check_same_order(schema(), schema(dense=[{"name": "d0", "role": "context"}, {"name": "d1"}]))
    every = [f.model_copy(update={"pooling": None}) for f in schema().categorical]
    check_same_order(schema(), schema(categorical=every))
