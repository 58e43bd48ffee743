from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyrec.models.errors import SchemaError
from polyrec.models.schema.schema import BUILT_IN, Schema, load_schema

MINIMAL: dict[str, Any] = {
    "name": "m",
    "dense": [{"name": "price"}],
    "categorical": [{"name": "item"}, {"name": "user", "role": "context"}],
    "label": {"column": "clicked"},
    "split": {"rule": "hash", "columns": ["user"]},
}


def saved(folder: Path, raw: object) -> Path:
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.mark.parametrize("name", ["criteo", "trivago", "bookcrossing"])
def test_shipped_schemas_load_by_name(name: str) -> None:
    schema = load_schema(name)
    assert schema.name == name
    assert load_schema(BUILT_IN / f"{name}.yaml") == schema


@pytest.mark.parametrize("name", ["criteo", "trivago", "bookcrossing"])
def test_a_schema_survives_json(name: str, tmp_path: Path) -> None:
    schema = load_schema(name)
    assert Schema.model_validate_json(schema.model_dump_json()) == schema
    path = tmp_path / "s.json"
    path.write_text(json.dumps(schema.model_dump(mode="json")))
    assert load_schema(path) == schema


def test_context_comes_before_candidate_and_single_valued_features_before_bags(small: Schema) -> None:
    assert small.context.names == ("age", "user", "last", "tags", "history")
    assert small.candidate.names == ("price", "item", "place", "code", "extras")
    assert [f.name for f in small.slots] == [
        *("user", "last", "tags", "history"),
        *("item", "place", "code", "extras"),
    ]


def test_features_that_name_the_same_table_share_it(small: Schema) -> None:
    tables = {table: [f.name for f in features] for table, features in small.tables.items()}
    assert tables["item"] == ["last", "history", "item"]
    assert set(tables) == {"user", "item", "tags", "place", "code", "extras"}


def test_columns_are_everything_training_reads_each_once(small: Schema) -> None:
    assert sorted(small.columns) == sorted(
        {*small.context.names, *small.candidate.names, "clicked", "request"}
    )


def changed(**edits: Any) -> dict[str, Any]:
    return copy.deepcopy(MINIMAL) | edits


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            changed(labels=1),
            "labels: unknown key; known: name, dense, categorical, request, label, group, split",
        ),
        (changed(categorical=[]), "at least one categorical feature"),
        (changed(categorical=[{"name": "price"}]), "feature 'price' is defined twice"),
        (changed(categorical=[{"name": "sparse"}]), "feature name 'sparse' is reserved"),
        (changed(categorical=[{"name": "a b"}]), "categorical['a b'].name: String should match pattern"),
        (changed(categorical=[{"name": "a", "cardinality": 3}]), "a cardinality needs type: integer"),
        (
            changed(categorical=[{"name": "a", "cardinality": 3, "type": "integer", "min_count": 2}]),
            "do not go with a cardinality",
        ),
        (
            changed(categorical=[{"name": "a"}, {"name": "b", "table": "a", "min_count": 3}]),
            "features 'a' and 'b' share table 'a' but differ in min_count",
        ),
        (changed(split={"rule": "time", "columns": ["a", "b"]}), "'time' takes exactly one column"),
        (changed(split={"rule": "hash", "columns": ["a"], "train": 1.5}), "split.train"),
        (changed(dense=[{"name": "x", "transform": ["log"]}]), "dense['x'].transform.0"),
        (
            changed(dense=[{"name": "x", "rol": "context"}]),
            "dense['x'].rol: unknown key; known: name, role, t",
        ),
        (changed(dense=[{"role": "context"}]), "dense.0.name: Field required"),
        (changed(label={"column": "c", "col": 1}), "label.col: unknown key; known: column, positive_above"),
        ([1], "must be a mapping, not list"),
    ],
)
def test_a_mistake_gets_one_line_that_names_it(raw: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError) as error:
        load_schema(saved(tmp_path, raw))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_lists_the_shipped_schemas() -> None:
    with pytest.raises(SchemaError, match="shipped schemas: bookcrossing, criteo, ml1m, trivago"):
        load_schema("nothing")


def test_a_file_that_is_no_yaml_is_rejected_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("a: [1\nb: {")
    with pytest.raises(SchemaError, match="is not YAML") as error:
        load_schema(path)
    assert "\n" not in str(error.value)
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SchemaError, match="is not YAML: it is not text"):
        load_schema(path)
