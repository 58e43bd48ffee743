from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.errors import FeatureError
from polyrec.models.schema.schema import Schema
from polyrec.planner.plan import Limits
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.errors import Invalid, Malformed, RequestError, TooLarge
from tests.server.codecs.schemas import small_schema

SCHEMA = small_schema(
    {"name": "class", "type": "integer", "cardinality": 9},
    {"name": "sizes", "type": "integer", "cardinality": 5, "pooling": "sum"},
)
DECODER = JsonDecoder(SCHEMA, Limits(max_request_rows=50, max_queued_rows=50))

ROW = {"price": 1.5, "age": 30, "user": "u", "tags": ["a", "b"], "item": "i", "class": 3, "sizes": [1]}


def body(content: Any) -> bytes:
    return json.dumps(content).encode()


def by_name(columns: Any) -> dict[str, Any]:
    context, candidate = columns.names
    return dict(zip(context + candidate, [*columns.context, *columns.candidate], strict=True))


def test_rows_and_columns_say_the_same() -> None:
    rows = [ROW, {**ROW, "price": 2, "tags": []}]
    columns = {name: [row[name] for row in rows] for name in ROW}
    by_rows = DECODER.predict(body({"instances": rows}))
    by_columns = DECODER.predict(body({"columns": columns}))
    assert {k: list(v) for k, v in by_name(by_rows).items()} == by_name(by_columns) == columns
    assert by_rows.rows == by_columns.rows == by_rows.context_rows == 2
    assert by_rows.context_row is by_columns.context_row is None


def test_omitted_and_null_values_are_missing() -> None:
    assert by_name(DECODER.predict(body({"columns": {"item": ["i"], "price": None}})))["price"] is None
    rows = by_name(DECODER.predict(body({"instances": [{"price": None}, {}]})))
    assert list(rows["price"]) == list(rows["user"]) == [None, None]


def test_a_ranking_request_has_one_context_and_its_candidates() -> None:
    request = DECODER.rank(
        body({"context": {"user": "u", "tags": ["a"]}, "candidates": {"item": ["i", "j", "k"]}, "top_k": 2})
    )
    assert (request.rows.rows, request.rows.context_rows, request.top_k) == (3, 1, 2)
    assert request.rows.context_row is not None
    assert request.rows.context_row.tolist() == [0, 0, 0]
    assert by_name(request.rows)["user"] == ("u",)
    assert by_name(request.rows)["tags"] == (["a"],)
    assert by_name(request.rows)["age"] is None


def test_candidates_may_be_a_list_of_objects() -> None:
    columns = DECODER.rank(body({"candidates": {"item": ["i", "j"], "class": [1, None]}}))
    objects = DECODER.rank(body({"candidates": [{"item": "i", "class": 1}, {"item": "j"}]}))
    assert list(by_name(objects.rows)["item"]) == by_name(columns.rows)["item"]
    assert list(by_name(objects.rows)["class"]) == by_name(columns.rows)["class"]


def test_top_k_beyond_the_candidates_means_all_of_them() -> None:
    assert DECODER.rank(body({"candidates": {"item": ["i"]}, "top_k": 50})).top_k == 1
    assert DECODER.rank(body({"candidates": {"item": ["i", "j"]}})).top_k == 2


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"", Malformed, "the body is empty"),
        (b'{"columns": {"price": [1, ', Malformed, "truncated after 26 bytes"),
        (b'{"columns": {"price": [1, NaN]}}', Malformed, "NaN is not a JSON number (byte 26) in 'price'"),
        (
            b'{"columns": {"price": [-Infinity]}}',
            Malformed,
            "-Infinity is not a JSON number (byte 23) in 'price'",
        ),
        (b"NaN", Malformed, "NaN is not a JSON number (byte 0); leave"),
        (b'{"columns": {"item": ["\xff"]}}', Malformed, "not UTF-8"),
        (b"{} {}", Malformed, "trailing characters"),
        (b"[1]", Invalid, "Expected object, got array"),
        (b"{}", Invalid, "either 'instances'"),
        (b'{"instances": [{}], "columns": {}}', Invalid, "either 'instances'"),
        (b'{"instances": []}', Invalid, "'instances' has no rows"),
        (b'{"columns": {}}', Invalid, "'columns' has no rows"),
        (b'{"columns": {"item": []}}', Invalid, "'columns' has no rows"),
        (b'{"rows": [{}]}', Invalid, "unknown key 'rows'"),
        (b'{"item": ["i"]}', Invalid, "feature 'item' belongs inside"),
        (
            b'{"columns": {"color": ["red"]}}',
            Invalid,
            "unknown feature 'color' at $.columns; known: age, user",
        ),
        (b'{"columns": {"item": [1]}}', Invalid, "got int - at $.columns.item[0]"),
        (b'{"columns": {"item": "i"}}', Invalid, "got str - at $.columns.item"),
        (b'{"columns": {"price": ["1"]}}', Invalid, "got str - at $.columns.price[0]"),
        (b'{"columns": {"price": [true]}}', Invalid, "got bool - at $.columns.price[0]"),
        (b'{"columns": {"price": [1e999]}}', Invalid, "out of range - at $.columns.price[0]"),
        (
            b'{"columns": {"class": [true]}}',
            Invalid,
            "class[0]; true is 1, and false 0",
        ),
        (b'{"columns": {"class": [1.5]}}', Invalid, "got float - at $.columns.class[0]; write 7, not 7.0"),
        (b'{"columns": {"tags": ["a"]}}', Invalid, "got str - at $.columns.tags[0]"),
        (b'{"columns": {"tags": [[null]]}}', Invalid, "got null - at $.columns.tags[0][0]"),
        (b'{"columns": {"tags": [[["a"]]]}}', Invalid, "got array - at $.columns.tags[0][0]"),
        (b'{"instances": [{}, {"item": 1}]}', Invalid, "at $.instances[1].item"),
        (
            b'{"columns": {"item": ["i"], "price": [1, 2]}}',
            FeatureError,
            "feature 'item': 1 values, but 'price'",
        ),
        (b'{"columns": {"class": [1' + b"0" * 5000 + b"]}}", Invalid, "out of range - at $.columns.class[0]"),
        (b'{"columns": {"item": [' + b"null," * 50 + b"null]}}", TooLarge, "51 rows; the limit is 50"),
        (b'{"instances": [' + b"{}," * 50 + b"{}]}", TooLarge, "51 rows; the limit is 50"),
    ],
)
def test_a_bad_predict_body_is_rejected_and_named(content: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        DECODER.predict(content)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"{}", Invalid, "missing required field candidates"),
        (b'{"candidates": {}}', Invalid, "'candidates' has no rows"),
        (b'{"candidates": []}', Invalid, "'candidates' has no rows"),
        (b'{"candidates": 3}', Invalid, "got int - at $.candidates"),
        (b'{"candidates": {"user": ["u"]}}', Invalid, "'user' is a context feature: it belongs in 'context'"),
        (b'{"candidates": [{"user": "u"}]}', Invalid, "'user' is a context feature: it belongs in 'context'"),
        (b'{"context": {"item": "i"}, "candidates": [{}]}', Invalid, "'item' is a candidate feature"),
        (
            b'{"context": {"color": "i"}, "candidates": [{}]}',
            Invalid,
            "at $.context; known: age, user, tags",
        ),
        (b'{"context": {"tags": "a"}, "candidates": [{}]}', Invalid, "got str - at $.context.tags"),
        (b'{"context": [], "candidates": [{}]}', Invalid, "got array - at $.context"),
        (b'{"candidates": [{}], "top_k": 0}', Invalid, "at $.top_k"),
        (b'{"candidates": [{}], "top_k": -1}', Invalid, "at $.top_k"),
        (b'{"candidates": [{}], "top_k": 51}', Invalid, "at $.top_k"),
        (b'{"candidates": [{}], "top_k": "3"}', Invalid, "at $.top_k"),
        (b'{"candidates": [{}], "top_k": 1.5}', Invalid, "at $.top_k"),
        (
            b'{"candidates": {"item": ["i"], "price": []}}',
            FeatureError,
            "feature 'price': 0 values, but 'item'",
        ),
    ],
)
def test_a_bad_rank_body_is_rejected_and_named(content: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        DECODER.rank(content)
    assert says in str(caught.value)


def test_nesting_without_end_is_rejected() -> None:
    for content in (b"[" * 200_000, b'{"columns": {"tags": ' + b"[" * 200_000):
        with pytest.raises(RequestError):
            DECODER.predict(content)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (r"\ud800", 21),
        (r"\ud83dx", 21),
        (r"\ud83d\n", 21),
        (r"abc\uDBFF", 24),
        (r"\udc00", 21),
        (r"\ud800\u0041", 27),
    ],
)
def test_half_of_a_surrogate_pair_is_called_that(text: str, at: int) -> None:
    with pytest.raises(Malformed, match=rf"half of a UTF-16 surrogate pair \(byte {at}\)"):
        DECODER.predict(b'{"columns":{"item":["%b"]}}' % text.encode())


@pytest.mark.parametrize("text", [r"\ud83d", r"\ud83d" + "\\", r"\ud83d\u", r"\ud83d\ude", "abc"])
def test_a_body_cut_inside_a_pair_is_truncated(text: str) -> None:
    with pytest.raises(Malformed, match="truncated after"):
        DECODER.predict(b'{"columns":{"item":["%b' % text.encode())


LONG = b"a" * 50_000


@pytest.mark.parametrize(
    "content",
    [
        b'{"instances":[{"%b":1}]}' % LONG,
        b'{"columns":{"%b":1}}' % LONG,
        b'{"%b":1}' % LONG,
        b'{"instances":[{"` - at `%b":1}]}' % LONG,
        b'{"columns":{"price":[1,"%b":NaN]}}' % LONG,
    ],
)
def test_a_message_repeats_a_few_characters_of_a_key(content: bytes) -> None:
    for read in (DECODER.predict, DECODER.rank):
        with pytest.raises(RequestError) as caught:
            read(content)
        assert len(str(caught.value)) < 300


def test_explaining_takes_no_more_memory_than_the_body() -> None:
    body = b'{"instances":[{"%b":1}]}' % (b"a" * 2**20)
    tracemalloc.start()
    with suppress(RequestError):
        DECODER.predict(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(body)


def test_the_key_is_found_behind_a_long_list() -> None:
    body = b'{"columns":{"price":[%bNaN]}}' % (b"1.5," * 2000)
    with pytest.raises(Malformed, match="in 'price'"):
        DECODER.predict(body)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*ROW, "candidates", "context", "columns", "instances", "top_k", "color"])
DOCUMENTS = st.dictionaries(
    NAMES, VALUES | st.dictionaries(NAMES, VALUES) | st.lists(st.dictionaries(NAMES, VALUES))
)


@given(st.binary(max_size=60) | DOCUMENTS.map(body))
def test_any_body_is_either_read_or_rejected(content: bytes) -> None:
    for read in (DECODER.predict, DECODER.rank):
        with suppress(RequestError, FeatureError):
            read(content)


@given(st.data())
def test_a_mutated_body_is_either_read_or_rejected(data: st.DataObject) -> None:
    content = bytearray(body({"instances": [ROW, ROW]}))
    digits = [at for at, byte in enumerate(content) if byte in b"123456789"]
    for _ in range(data.draw(st.integers(1, 4))):
        # a digit for a digit may be read
        if data.draw(st.booleans()):
            content[data.draw(st.sampled_from(digits))] = data.draw(st.sampled_from(b"123456789"))
        else:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        rows = DECODER.predict(bytes(content))
    except (RequestError, FeatureError):
        return
    assert rows.rows == 2


def test_a_schema_of_only_candidates_can_be_ranked() -> None:
    schema = Schema.model_validate(
        {
            "name": "flat",
            "categorical": [{"name": "item"}],
            "label": {"column": "c"},
            "split": {"rule": "time", "columns": ["c"]},
        }
    )
    request = JsonDecoder(schema, Limits()).rank(b'{"context": {}, "candidates": {"item": ["a", "b"]}}')
    assert request.rows.context_rows == 1
    assert np.array_equal(request.rows.context_row, [0, 0])  # type: ignore[arg-type]


def test_groups_by_integers_of_one_hash_get_hashes_of_their_own() -> None:
    schema = Schema.model_validate(
        SCHEMA.model_dump() | {"group": "search", "request": [{"name": "n", "compute": "length"}]}
    )
    numbers = [i * (2**61 - 1) for i in range(200)]
    rows = JsonDecoder(schema, Limits()).predict(body({"columns": {"item": ["i"] * 200, "search": numbers}}))
    assert rows.group is not None
    assert len(set(map(hash, numbers))) == 1
    assert len(set(map(hash, rows.group))) > 150
