from __future__ import annotations

import math
from typing import Any

import numpy as np
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.client.bodies import predict_body, rank_body
from polyrec.client.errors import InvalidRequest

INSTANCES: list[dict[str, Any]] = [
    {"item": "a", "price": 1.5, "seen": 2, "filters": ["x", "y"]},
    {"item": "b", "price": None, "seen": 0, "filters": []},
    {"item": None, "price": -3.25, "seen": 1, "filters": ["z"]},
]
KINDS = (">f4", "<f4", "<f8")
COLUMNS: dict[str, list[Any]] = {name: [row[name] for row in INSTANCES] for name in INSTANCES[0]}
FORMS = {
    "rows": INSTANCES,
    "lists": COLUMNS,
    "arrays": COLUMNS | {"price": np.array([1.5, np.nan, -3.25]), "seen": np.array([2, 0, 1], np.int32)},
    "tuples": COLUMNS | {"filters": [("x", "y"), (), np.array(["z"])]},
    "arrow": pa.table(COLUMNS),
    "arrow batch": pa.RecordBatch.from_pydict(COLUMNS),
    "pandas": pd.DataFrame(COLUMNS, index=[7, 7, 9]),
    "polars": pl.DataFrame(COLUMNS),
    "pandas series": {name: pd.Series(values, dtype=object) for name, values in COLUMNS.items()},
    "polars series": {name: pl.Series(values) for name, values in COLUMNS.items()},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_sent_as_the_same_columns(form: str) -> None:
    assert orjson.loads(predict_body(FORMS[form])) == {"columns": COLUMNS}


def test_a_feature_that_a_row_leaves_out_is_missing_there() -> None:
    body = predict_body([{"a": 1}, {"b": "x"}])
    assert orjson.loads(body) == {"columns": {"a": [1, None], "b": [None, "x"]}}


@given(
    st.lists(st.floats(allow_infinity=False, width=32), min_size=1), st.sampled_from(["<f4", ">f4", "<f8"])
)
def test_numbers_arrive_as_they_were_and_nan_as_missing(values: list[float], kind: str) -> None:
    array = np.array(values).astype(kind)
    strided = np.repeat(array, 2)[::2]
    for column in (array, strided, array.tolist()):
        sent = orjson.loads(predict_body({"price": column}))["columns"]["price"]
        assert [math.nan if v is None else np.float32(v) for v in sent] == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize("form", ["rows", "lists", "arrays", "pandas", "arrow", "polars"])
def test_true_and_false_are_sent_as_numbers(form: str) -> None:
    values = [True, False, None] if form != "arrays" else np.array([True, False])
    forms = {
        "rows": lambda: [{"member": v} for v in values],
        "lists": lambda: {"member": values},
        "arrays": lambda: {"member": values},
        "pandas": lambda: pd.DataFrame({"member": values}),
        "arrow": lambda: pa.table({"member": values}),
        "polars": lambda: pl.DataFrame({"member": values}),
    }
    sent = predict_body(forms[form]()).decode()
    assert sent == f'{{"columns":{{"member":[{"1,0" if form == "arrays" else "1,0,null"}]}}}}'


@pytest.mark.parametrize(
    "rows",
    [
        [{"price": 1.0}, {"price": math.inf}],
        {"price": [1.0, -math.inf]},
        {"price": np.array([1.0, np.inf], np.float32)},
        {"price": np.array([1.0, np.inf, 2.0])[:2][::1]},
        pd.DataFrame({"price": [None, np.inf]}),
        pa.table({"price": [1.0, math.inf]}),
    ],
)
def test_an_infinite_number_is_refused_and_not_sent_as_missing(rows: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"feature 'price': -?inf is not a finite number \(row 1\)"):
        predict_body(rows)


def test_an_infinite_number_of_the_context_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="feature 'age': inf is not a finite number"):
        rank_body({"age": np.float32("inf"), "city": "Rome"}, [{"item": "a"}], None)


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame([[1, 2]], columns=["price", "price"]),
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["price", "price"]),
    ],
)
def test_a_column_that_occurs_twice_is_refused(rows: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"(?i)column.*'price'"):
        predict_body(rows)


def test_a_ranking_has_context_and_top_k_only_if_given() -> None:
    assert orjson.loads(rank_body(None, {"item": ["a"]}, None)) == {"candidates": {"item": ["a"]}}
    sent = orjson.loads(rank_body({"age": np.float32(3), "liked": ("p",)}, pl.DataFrame({"item": ["a"]}), 2))
    assert sent == {"candidates": {"item": ["a"]}, "context": {"age": 3.0, "liked": ["p"]}, "top_k": 2}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("price", "rows are a str; give a list of dicts"),
        (7, "rows are a int"),
        ([{"a": 1}, 5], "row 1 is a int; give a dict"),
        ({"price": 3.0}, "a column is float 3.0; give a list"),
        ({"item": "abc"}, "a column is str 'abc'; give a list"),
        ({"item": [object()]}, "'item' cannot be sent as JSON"),
        (
            pd.DataFrame({"item": ["a"], "when": pd.to_datetime(["2026-11-26"])}),
            "'when' cannot be sent as JSON",
        ),
        (pd.DataFrame({"item": ["a", 1.5, b"c"]}), "rows are no table"),
    ],
)
def test_other_forms_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        predict_body(rows)


def test_a_context_is_a_dict() -> None:
    with pytest.raises(InvalidRequest, match="the context is a list"):
        rank_body([1], {"item": ["a"]}, None)  # type: ignore[arg-type]


def test_rows_without_any_feature_keep_their_number() -> None:
    assert orjson.loads(predict_body([{}, {}])) == {"instances": [{}, {}]}
    assert orjson.loads(rank_body({"age": 3}, [{}, {}], None))["candidates"] == [{}, {}]
