"""Tests polyrec.models.schema.request.features against a reference that loops over requests and rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.batch import F64
from polyrec.models.schema.dedup.distinct import Jagged
from polyrec.models.schema.request.codes import codes_of_values, hashed_apart, match_values, singles
from polyrec.models.schema.request.features import RequestFeatures
from polyrec.models.schema.request.rows import RequestRows
from polyrec.models.schema.schema import STATISTICS, Compute, Schema

NAN = math.nan
MATCHES = ("present", "position", "distance", "after", "before", "match", "place", "count", "listed")


def every_feature() -> list[dict[str, Any]]:
    features: list[dict[str, Any]] = [
        {"name": "at", "compute": "relative_position"},
        {"name": "n", "compute": "length"},
        {"name": "rank", "of": "price", "compute": "rank"},
    ]
    for compute in ("difference", "ratio"):
        features += [
            {"name": f"{compute}_{s}", "of": "price", "to": s, "compute": compute} for s in STATISTICS
        ]
    for to in ("last", "recent"):
        features += [{"name": f"{to}_{c}", "of": "item", "to": to, "compute": c} for c in MATCHES]
        features += [
            {"name": f"{to}_{c}_{s}", "of": "price", "to": s, "compute": c, "among": f"{to}_match"}
            for c in ("difference", "ratio")
            for s in STATISTICS
        ]
    return features


def schema_of(features: Sequence[dict[str, Any]]) -> Schema:
    return Schema.model_validate(
        {
            "name": "shop",
            "dense": [{"name": "price"}],
            "categorical": [
                {"name": "last", "role": "context", "table": "item"},
                {"name": "recent", "role": "context", "table": "item", "pooling": "mean"},
                {"name": "user", "role": "context"},
                {"name": "item"},
            ],
            "request": list(features),
            "label": {"column": "clicked"},
            "group": "request",
            "split": {"rule": "hash", "columns": ["request"]},
        }
    )


SCHEMA = schema_of(every_feature())
Row = dict[str, Any]


def reference(requests: Sequence[Sequence[Row]], features: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Row by row; a row has `price`, `item`, `last` and `recent`, None where missing."""
    return [[slow(f, request, i) for f in features] for request in requests for i in range(len(request))]


def slow(feature: dict[str, Any], request: Sequence[Row], i: int) -> float:
    compute, to = feature["compute"], feature.get("to")
    row, n = request[i], len(request)
    if compute == "relative_position":
        return i / (n - 1) if n > 1 else 0.0
    if compute == "length":
        return n
    if feature["of"] == "price":
        among = feature.get("among", "").removesuffix("_match")
        counted = [r["price"] if not among or match(r, among) else None for r in request]
        x, known = row["price"], sorted(price for price in counted if price is not None)
        if x is None:
            return NAN
        if compute == "rank":
            return sum(y < x for y in known) + (sum(y == x for y in known) - 1) / 2
        if to in ("previous", "next"):
            j = i - 1 if to == "previous" else i + 1
            other = counted[j] if 0 <= j < n else None
        elif not known:
            return NAN
        else:
            middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
            other = {"minimum": known[0], "maximum": known[-1], "median": middle}.get(
                to, sum(known) / len(known)
            )
        if other is None or (compute == "ratio" and other == 0):
            return NAN
        return x - other if compute == "difference" else x / other
    matching = [match(r, to) for r in request]
    if compute == "match":
        return float(matching[i])
    if compute == "place":
        return listed(row, to).index(row["item"]) if matching[i] else NAN
    if compute == "listed":
        return len(listed(row, to))
    if compute == "count":
        return sum(matching)
    if compute == "present":
        return float(any(matching))
    rows = [j for j in range(n) if matching[j]]
    if compute in ("after", "before"):
        sign = 1 if compute == "after" else -1
        return min((sign * (i - j) for j in rows if sign * (i - j) >= 0), default=NAN)
    if not rows:
        return NAN
    return rows[0] if compute == "position" else i - min(rows, key=lambda j: (abs(i - j), j))


def listed(row: Row, to: str | None) -> list[str | None]:
    return [row["last"]] if to == "last" else list(row["recent"])


def match(row: Row, to: str | None) -> bool:
    return row["item"] is not None and row["item"] in listed(row, to)


def inputs(requests: Sequence[Sequence[Row]], shared: bool = False) -> RequestRows:
    """shared: each request has one context, that of its first row."""
    rows = [row for request in requests for row in request]
    contexts = [request[0] for request in requests] if shared else rows
    lists = [row["recent"] for row in contexts]
    item, last, recent = codes_of_values(
        [[r["item"] for r in rows]],
        [[r["last"] for r in contexts], [v for values in lists for v in values]],
    )
    lengths = np.array([len(request) for request in requests])
    matches = RequestFeatures(SCHEMA).match(
        {"item": item},
        {"last": singles(last), "recent": Jagged(recent, np.cumsum([0, *map(len, lists)]))},
        np.repeat(np.arange(len(requests)), lengths) if shared else None,
    )
    return RequestRows(lengths, {"price": prices(rows)}, matches)


def inputs_of_one(request: Sequence[Row]) -> RequestRows:
    """One request with the context of its first row, whose raw values are compared."""
    items = [row["item"] for row in request]
    matches = {("item", to): match_values(items, listed(request[0], to)) for to in ("last", "recent")}
    return RequestRows(np.array([len(request)]), {"price": prices(request)}, matches)


def prices(rows: Sequence[Row]) -> F64:
    return np.array([NAN if r["price"] is None else r["price"] for r in rows])


ITEMS = st.sampled_from([None, "a", "b", "c", "d", "e"])
ROWS = st.fixed_dictionaries(
    {
        # multiples of a 64th have exact sums: a mean near zero does not magnify roundings
        "price": st.one_of(st.none(), st.integers(-3, 3), st.integers(32, 32_000).map(lambda x: x / 64)),
        "item": ITEMS,
        "last": ITEMS,
        "recent": st.lists(ITEMS, max_size=4),
    }
)
REQUESTS = st.lists(st.lists(ROWS, min_size=1, max_size=7), min_size=1, max_size=5)


def compare(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@given(REQUESTS)
def test_whole_arrays_compute_what_the_reference_does(requests: list[list[Row]]) -> None:
    compare(RequestFeatures(SCHEMA)(inputs(requests)), reference(requests, every_feature()))


@given(REQUESTS)
def test_a_shared_context_computes_what_repeated_contexts_do(requests: list[list[Row]]) -> None:
    same = [[row | {k: request[0][k] for k in ("last", "recent")} for row in request] for request in requests]
    expected = reference(same, every_feature())
    features = RequestFeatures(SCHEMA)
    compare(features(inputs(same, shared=True)), expected)
    compare(np.vstack([features(inputs_of_one(request)) for request in same]), expected)


def test_features_of_many_requests_are_those_of_each_alone() -> None:
    random = np.random.default_rng(3)
    names = np.array([None, *(f"item{i}" for i in range(30))], object)
    requests = [
        [
            {
                "price": float(random.integers(20, 300)),
                "item": random.choice(names),
                "last": random.choice(names),
                "recent": random.choice(names, random.integers(0, 9)).tolist(),
            }
            for _ in range(random.integers(1, 40))
        ]
        for _ in range(60)
    ]
    features = RequestFeatures(SCHEMA)
    together = features(inputs(requests))
    np.testing.assert_array_equal(together, np.vstack([features(inputs([r])) for r in requests]))
    compare(together, reference(requests, every_feature()))


@given(REQUESTS, st.randoms(use_true_random=False))
def test_rows_in_any_order_are_grouped(requests: list[list[Row]], random: Any) -> None:
    rows = [(number, row) for number, request in enumerate(requests) for row in request]
    random.shuffle(rows)
    order = sorted(range(len(rows)), key=lambda i: rows[i][0])
    again = [[row for of, row in rows if of == number] for number in range(len(requests))]
    group = np.array([number for number, _ in rows]) * 5 - 7
    found = RequestFeatures(SCHEMA).compute_grouped(inputs([[row for _, row in rows]]), group)
    compare(found[order], reference(again, every_feature()))


def test_every_compute_is_tested_here() -> None:
    assert {f["compute"] for f in every_feature()} == set(get_args(Compute))


def test_values_beyond_float_range_are_missing() -> None:
    row = {"item": None, "last": None, "recent": []}
    rows = inputs([[row | {"price": price} for price in (-1.7e308, 1.7e308)]])
    assert not np.isinf(RequestFeatures(SCHEMA)(rows)).any()


def test_codes_are_equal_where_values_are() -> None:
    one, two = codes_of_values([["a", None, "b"]], [["b", "a", None]])
    assert (one[0], one[2]) == (two[1], two[0])
    assert len({*one, *two}) == 4


def test_integers_of_one_hash_are_compared_with_few_others() -> None:
    compared = 0

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    values: list[Any] = [Counted(i * (2**61 - 1)) for i in range(400)]
    # sets of types know the class of plain integers only
    one, two = codes_of_values([[0, *values]], [[2**64 - 1, *values, None]])
    assert one[1] == one[0]
    np.testing.assert_array_equal(two[1:-1], one[1:])
    assert np.unique(one[1:]).size == 400
    assert compared < 10 * 400


def test_integers_of_one_hash_are_matched_by_value() -> None:
    values = [i * (2**61 - 1) for i in (0, 1, 40, -40, 400)]
    candidate, context = hashed_apart([*values[::2], 7, None]), hashed_apart([*values[1:], None, 5])
    found = match_values(candidate, context)
    assert found.at.tolist() == [-1, 1, 3, -1, -1]
    assert found.listed.tolist() == [6]


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"compute": "rank"}, "needs 'of'"),
        ({"compute": "length", "of": "price"}, "takes no 'of'"),
        ({"compute": "rank", "of": "item"}, "is of a dense feature of the candidate, not of 'item'"),
        ({"compute": "ratio", "of": "price", "to": "mode"}, "must be one of minimum, maximum"),
        ({"compute": "match", "of": "price", "to": "last"}, "is of a single-valued categorical feature"),
        ({"compute": "match", "of": "item", "to": "price"}, "is to a categorical feature of the context"),
        ({"compute": "match", "of": "item", "to": "user"}, "must share a table"),
        ({"compute": "match", "of": "item"}, "needs 'to'"),
        ({"compute": "rank", "of": "price", "among": "wrong"}, "takes no 'among'"),
        (
            {"compute": "ratio", "of": "price", "to": "mean", "among": "item"},
            "is among rows of a feature with compute: match, not of 'item'",
        ),
        ({"compute": "length", "role": "context"}, "role"),
        ({"compute": "length", "name": "price"}, "defined twice"),
        ({"compute": "length", "name": "request"}, "group"),
    ],
)
def test_a_wrong_feature_is_refused_by_name(feature: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schema_of([{"name": "wrong"} | feature])


def test_features_of_the_request_need_a_group() -> None:
    with pytest.raises(ValueError, match="need a group"):
        Schema.model_validate(SCHEMA.model_dump() | {"group": None})
