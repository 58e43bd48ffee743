from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.schema.schema import BUILT_IN, Dense, Schema, load_schema
from polyrec.planner.plan import Limits
from polyrec.server.codecs.body_limits import COUNTED_FROM_BYTES, BodyLimits
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.errors import TooLarge

SCHEMAS = {file.stem: load_schema(file.stem) for file in sorted(Path(BUILT_IN).glob("*.yaml"))}
TRIVAGO = SCHEMAS["trivago"]
LIMITS = BodyLimits.from_schema(TRIVAGO, Limits())
FULL = 2**20


def filled(head: bytes, unit: bytes, tail: bytes) -> bytes:
    return head + unit * ((FULL - len(head) - len(tail)) // len(unit)) + tail


@pytest.mark.parametrize("name", SCHEMAS)
def test_by_default_a_body_has_a_mebibyte_at_most(name: str) -> None:
    limits = BodyLimits.from_schema(SCHEMAS[name], Limits())
    assert 2**16 <= limits.max_bytes <= 2**20


def test_the_limits_follow_from_the_rows_and_the_schema() -> None:
    by_rows = [
        BodyLimits.from_schema(TRIVAGO, Limits(max_request_rows=n)).max_bytes
        for n in (1, 50, 1024, 4096, 16384)
    ]
    assert by_rows == [2**16, 50 * (by_rows[1] // 50), 2**20, 2**20, 4 * 2**20]
    assert by_rows[1] > 50 * (64 + 32) * 64  # full lists of long ids
    one = Schema.model_validate(
        {
            "name": "one",
            "categorical": [{"name": "item"}],
            "label": {"column": "c"},
            "split": {"rule": "time", "columns": ["c"]},
        }
    )
    assert BodyLimits.from_schema(one, Limits()).max_bytes < by_rows[2] / 2
    huge = Limits(max_request_rows=2**20, max_queued_rows=2**20)
    assert BodyLimits.from_schema(TRIVAGO, huge).max_bytes == 16 * 2**20


def test_an_operators_limit_wins() -> None:
    for given_bytes in (1, 10**9):
        assert BodyLimits.from_schema(TRIVAGO, Limits(max_body_bytes=given_bytes)).max_bytes == given_bytes


@pytest.mark.parametrize(
    ("head", "unit", "tail", "says"),
    [
        (b'{"instances":[', b"{},", b"{}]}", "values"),
        (b'{"columns":{"item":[', b"null,", b"null]}}", "values"),
        (b'{"columns":{"price":[', b"5e-320,", b"1]}}", "values"),
        (b'{"columns":{"filters":[', b"[],", b"[]]}}", "values"),
        (b'{"instances":[{', b'"seen":1,', b'"seen":1}]}', "values"),
        (b"{", b'"columns":{},', b'"columns":{}}', "values"),
        (b"", b"[", b"", "lists and objects"),
        (b'{"a":' * 10, b'{"a":', b"1", "lists and objects"),
    ],
)
def test_structure_is_counted_before_it_is_parsed(head: bytes, unit: bytes, tail: bytes, says: str) -> None:
    # Whoever parsed it would say that it is malformed.
    body = filled(head, unit, tail + b"!")
    decoder = JsonDecoder(TRIVAGO, Limits())
    for read in (decoder.predict, decoder.rank):
        with pytest.raises(TooLarge, match=says):
            read(body)


@pytest.mark.parametrize(
    "unit",
    [b'{"name":"","shape":[],"datatype":""},', b'{"name":"a","name":"a"},', b"1,", b'{"":{"":{"":{}}}},'],
)
def test_structure_of_tensors_is_counted_too(unit: bytes) -> None:
    with pytest.raises(TooLarge, match="has more than"):
        OipCodec(TRIVAGO, Limits()).decode(filled(b'{"inputs":[', unit, b"{}]}!"), None)


def request(schema: Schema, rows: int, columns: bool, seed: int) -> Any:
    """A document of random rows: large ones where they are few, else as large as the limits have it."""
    rng = random.Random(seed)
    features: tuple[Any, ...] = (*schema.dense, *schema.categorical)
    lists = [f for f in schema.categorical if f.multi]
    # All that the schema allows for few rows, the average for many.
    most = max(0, min(64, (min(64, 40_960 // rows) - len(features)) // max(1, len(lists)) - 1))
    if rows * (len(features) + sum(f.max_length for f in lists)) < 16_000:
        most = 64
    words = [
        "WiFi",
        "a, b",
        "x{y}[z]",
        'say "hi"',
        "tab\t",
        "back\\slash",
        "é",
        "漢字",
        "😀",
        "0xE1e9",
        "null",
    ]
    longest = 12 if rows * len(features) > 8000 else 60

    def one(f: Any, i: int) -> Any:
        if rng.random() < 0.02:
            return None
        if isinstance(f, Dense):
            return rng.choice([i, -i, i / 7, 1e-5 * i, -3.25e-30, 1.5e22, 0.1 + i])
        if f.type == "integer":
            return rng.choice([i % 25, -1, 2**63 - 1])
        if f.multi:
            return [rng.choice(words) for _ in range(rng.randrange(min(most, f.max_length) + 1))]
        return rng.choice([*words, f"{rng.getrandbits(4 * longest):x}"[:longest]])

    by_feature = {f.name: [one(f, i) for i in range(rows)] for f in features}
    if columns:
        return {"columns": by_feature}
    each = zip(*by_feature.values(), strict=True)
    return {"instances": [dict(zip(by_feature, row, strict=True)) for row in each]}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(SCHEMAS)),
    st.sampled_from([1, 2, 23, 270, 700, 1024]) | st.integers(1, 1024),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_body_limits_accept_ordinary_requests(
    name: str, rows: int, columns: bool, ascii_only: bool, seed: int
) -> None:
    decoder = JsonDecoder(SCHEMAS[name], Limits())
    # room for the commas inside strings, which are counted as well
    rows = min(rows, 30_000 // (len(SCHEMAS[name].dense) + len(SCHEMAS[name].categorical)))
    body = json.dumps(request(SCHEMAS[name], rows, columns, seed), ensure_ascii=ascii_only).encode()
    assert len(body) <= decoder.body_limits.max_bytes
    assert decoder.predict(body).rows == rows


@pytest.mark.parametrize(("rows", "is_counted"), [(300, False), (600, True)])
def test_the_limits_leave_room_for_structure_inside_strings(rows: int, is_counted: bool) -> None:
    strings = ["a,b,c,{x},[y]," * 4] * rows
    body = json.dumps({"columns": {"item": strings, "city": strings, "user_id": strings}}).encode()
    assert (len(body) >= COUNTED_FROM_BYTES) is is_counted
    assert JsonDecoder(TRIVAGO, Limits()).predict(body).rows == rows
