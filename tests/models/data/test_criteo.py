from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.data import criteo
from polyrec.models.data.criteo import CATEGORIES, FIELDS, INTEGERS, CriteoReader
from polyrec.models.data.reader import OnMalformed, open_data
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema, load_schema

Line = list[str]

GOOD: Line = ["1", *(str(i) for i in range(13)), *(f"{i:08x}" for i in range(26))]
BAD = {
    "39 columns instead of 40": "\t".join(GOOD[:-1]),
    "41 columns instead of 40": "\t".join([*GOOD, ""]),
    "1 columns instead of 40": "",
    "I2 is 'x', not an integer": "\t".join([*GOOD[:2], "x", *GOOD[3:]]),
    "I13 is '1.0', not an integer": "\t".join([*GOOD[:13], "1.0", *GOOD[14:]]),
    "the label is '2', not 0 or 1": "\t".join(["2", *GOOD[1:]]),
    "the label is '', not 0 or 1": "\t".join(["", *GOOD[1:]]),
    "label is 'yes', not an integer": "\t".join(["yes", *GOOD[1:]]),
    "a character outside ASCII": "\t".join([*GOOD[:-1], "ä"]),
    "a carriage return inside the line": "\t".join([*GOOD[:-1], "a\rb"]),
}


@pytest.fixture(scope="module")
def schema() -> Schema:
    return load_schema("criteo")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("criteo") / "lines.tsv"


def read(path: Path, schema: Schema, on_malformed: OnMalformed = "fatal") -> list[dict[str, object]]:
    columns = ["row", *FIELDS]
    return [row for b in open_data(path, schema, on_malformed).batches(columns) for row in b.to_pylist()]


def expected(line: Line, row: int) -> dict[str, object]:
    fields = dict(zip(FIELDS, line, strict=True))
    numbers = {name: float(fields[name]) if fields[name] else None for name in INTEGERS}
    return {"row": row} | numbers | {name: fields[name] or None for name in CATEGORIES}


lines = st.lists(
    st.tuples(
        st.tuples(st.sampled_from("01")),
        st.tuples(*[st.just("") | st.integers(-(2**53), 2**53).map(str)] * 13),
        st.tuples(*[st.just("") | st.integers(0, 2**32 - 1).map("{:08x}".format)] * 26),
    ).map(lambda parts: [field for part in parts for field in part]),
    min_size=1,
    max_size=5,
)


@given(rows=lines, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), zipped=st.booleans())
def test_lines_come_back_as_they_are(
    rows: list[Line], end: str, last: bool, zipped: bool, schema: Schema, file: Path
) -> None:
    text = end.join("\t".join(line) for line in rows) + end * last
    file.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert read(file, schema) == [expected(line, i + 1) for i, line in enumerate(rows)]


@given(places=st.lists(st.booleans(), min_size=1, max_size=40), data=st.data())
def test_malformed_lines_are_left_out_whatever_columns_are_read(
    places: list[bool], data: st.DataObject, schema: Schema, file: Path
) -> None:
    bad = list(BAD.values())
    text = [data.draw(st.sampled_from(bad)) if wrong else "\t".join(GOOD) for wrong in places]
    file.write_bytes("".join(line + "\n" for line in text).encode())
    good = [i + 1 for i, wrong in enumerate(places) if not wrong]
    reader = open_data(file, schema, "count")
    for columns in (["row"], ["row", "C26"], ["row", *FIELDS]):
        got = [row for b in reader.batches(columns) for row in b.column("row").to_pylist()]
        assert got == good
        assert reader.malformed == sum(places)


@pytest.mark.parametrize(("offense", "line"), BAD.items())
def test_the_first_malformed_line_is_fatal_with_its_number(
    offense: str, line: str, schema: Schema, file: Path
) -> None:
    text = ["\t".join(GOOD)] * 16 + [line, "\t".join(GOOD), "later too"]
    file.write_bytes("".join(part + "\n" for part in text).encode())
    with pytest.raises(DataError) as error:
        read(file, schema)
    assert f"line 17: {offense}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("chunk", [200, 1000, 1 << 20])
def test_line_numbers_go_on_from_chunk_to_chunk(
    chunk: int, schema: Schema, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criteo, "CHUNK_BYTES", chunk)
    text = ["\t".join(GOOD)] * 30
    text[20] = BAD["I2 is 'x', not an integer"]
    file.write_bytes("".join(line + "\n" for line in text).encode())
    assert [row["row"] for row in read(file, schema, "count")] == [i for i in range(1, 31) if i != 21]
    with pytest.raises(DataError, match="line 21: I2 is 'x'"):
        read(file, schema)


@given(text=st.text("0123456789-+xXaAfF _.e", max_size=24))
def test_the_slow_path_takes_the_same_integers_as_the_fast_one(text: str) -> None:
    fields = [b"0", *[b""] * 39]
    fields[3] = text.encode()
    try:
        parsed = criteo._table(b"\t".join(fields) + b"\n", ())
    except pa.ArrowInvalid:
        parsed = None
    assert (parsed is not None) == (text == "" or criteo._integer(text) is not None)


def test_a_chunk_is_a_bounded_part_of_the_file(
    schema: Schema, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criteo, "CHUNK_BYTES", 10_000)
    line = "\t".join(GOOD) + "\n"
    file.write_text(line * 2000)
    reader = CriteoReader(file, schema)
    sizes = [b.num_rows for b in reader.batches(["row"])]
    assert sum(sizes) == 2000
    assert max(sizes) <= 10_000 // len(line) + 2
    assert max(b.num_rows for b in reader.batches(["row"], 7)) == 7


def test_a_file_without_line_ends_is_rejected_early(
    schema: Schema, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criteo, "CHUNK_BYTES", 1000)
    file.write_bytes(b"\t".join([b"0"] * 5) + b"\n" + b"x" * 5000)
    with pytest.raises(DataError, match="line 2 is longer than 1000 bytes; this is not a Criteo file"):
        read(file, schema, "count")


def test_a_damaged_gzip_is_rejected(schema: Schema, file: Path) -> None:
    random = np.random.default_rng(0).bytes(50_000).hex()
    text = "\t".join([*GOOD[:-1], random]) + "\n"
    file.write_bytes(gzip.compress(text.encode())[:-5000])
    with pytest.raises(DataError, match="cannot read"):
        read(file, schema)


def test_a_schema_of_other_columns_is_rejected(small: Schema, file: Path) -> None:
    file.write_text("\t".join(GOOD))
    with pytest.raises(DataError, match="read as a Criteo TSV: no column 'age'; the columns are row, label"):
        open_data(file, small)


def test_the_shipped_sample_is_read_whole(schema: Schema, shared_data: Path) -> None:
    rows = read(shared_data / "criteo" / "train-10k.tsv", schema)
    assert len(rows) == 10_000
    assert np.mean([row["label"] for row in rows]) == pytest.approx(0.218, abs=5e-4)
    missing = np.mean([row[name] is None for row in rows for name in CATEGORIES])
    assert missing == pytest.approx(0.114, abs=5e-4)
