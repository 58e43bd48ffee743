from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from polyrec.models.data.moments import LEAST
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import Splitter, fit_splitter
from polyrec.models.errors import DataError
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import (
    Calibration,
    calibrate,
    counted_lookups,
    load_calibration,
    save_calibration,
    skew,
    vocabularies_from_tensors,
    vocabulary_tensors,
)
from polyrec.models.schema.schema import Dense, Schema
from polyrec.models.schema.vocabulary import Vocabulary

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], Path]


def everything_trains(data: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int8]]:
    return np.zeros(data.num_rows, np.int8)


def accesses(schema: Schema, table: str, rows: Sequence[Row], served: bool = False) -> Counter[Any]:
    """Yields the lookups of each feature of a table: per row, or as served, a context once per request."""
    counter: Counter[Any] = Counter()
    for before, row in zip((None, *rows), rows, strict=False):
        again = before is not None and before["request"] == row["request"]
        for f in schema.tables[table]:
            if served and again and f.role == "context":
                continue
            values = (row[f.name] or [])[: f.max_length] if f.multi else [row[f.name]]
            counter.update(values)
    return counter


def by_value(v: Vocabulary) -> dict[Any, int]:
    """Counts of the values of a vocabulary."""
    values = list(range(v.size)) if v.values is None else v.values.to_pylist()
    return {value: int(v.counts[v.rank_of_id[i]]) for i, value in enumerate(values)}


@given(data=st.data())
def test_counts_are_those_of_a_counter(
    data: st.DataObject, small: Schema, small_rows: Callable[..., Any], write: Write
) -> None:
    rows = data.draw(st.lists(small_rows(), min_size=1, max_size=30))
    found = calibrate(open_data(write(rows), small), small, everything_trains)
    assert found.rows == found.sampled_rows == len(rows)
    for table, (head, *_) in small.tables.items():
        v = found.vocabularies[table]
        counter, served = accesses(small, table, rows), accesses(small, table, rows, served=True)
        counter.pop(None, 0)
        missing = served.pop(None, 0)
        if head.cardinality is not None:
            kept = {value: served.get(value, 0) for value in range(head.cardinality)}
            ahead = 0
        else:
            frequent = [item for item in counter.items() if item[1] >= head.min_count]
            frequent.sort(key=lambda item: (-item[1], item[0]))
            kept = dict(frequent[: head.max_values])
            assert v.values.to_pylist() == list(kept)
            kept = {value: served.get(value, 0) for value in kept}
            # as many new values are to come as were seen once (Turing)
            ahead = sum(n == 1 for n in kept.values())
        assert by_value(v) == kept
        assert v.counts[v.missing_rank] == missing
        assert v.counts[v.oov_rank] == served.total() - sum(kept.values()) + ahead
        assert (np.diff(v.counts) <= 0).all()


@given(data=st.data())
def test_equally_popular_rows_are_ordered_by_latest_lookup(
    data: st.DataObject, small: Schema, small_rows: Callable[..., Any], write: Write
) -> None:
    rows = data.draw(st.lists(small_rows(), min_size=1, max_size=30))
    found = calibrate(open_data(write(rows), small), small, everything_trains)
    for table, v in found.vocabularies.items():
        last: dict[Any, int] = {}
        for number in range(len(rows)):
            # what a row adds to the lookups of those before it
            more = accesses(small, table, rows[: number + 1], True) - accesses(
                small, table, rows[:number], True
            )
            last |= dict.fromkeys(more, number)
        values = list(range(v.size)) if v.values is None else v.values.to_pylist()
        by_id = [last.get(value, -1) for value in values] + [-1, -1]
        id_of_rank = np.argsort(v.rank_of_id)
        keys = [(-int(n), -by_id[i], i) for n, i in zip(v.counts, id_of_rank.tolist(), strict=True)]
        assert keys == sorted(keys)


@given(data=st.data())
def test_standards_are_mean_and_deviation_of_present_values(
    data: st.DataObject, small: Schema, small_rows: Callable[..., Any], write: Write
) -> None:
    rows = data.draw(st.lists(small_rows(), min_size=1, max_size=30))
    found = calibrate(open_data(write(rows), small), small, everything_trains)
    ages = np.log1p(np.maximum([row["age"] for row in rows if row["age"] is not None], 0.0))
    prices = np.array([row["price"] for row in rows if row["price"] is not None])
    for name, x in (("age", ages), ("price", prices)):
        standard = found.standards[name]
        assert standard.deviation > 0
        assert standard.mean == pytest.approx(x.mean() if x.size else 0.0, abs=1e-9)
        if x.size and x.std() > max(1e-9 * abs(x.mean()), LEAST):
            assert standard.deviation == pytest.approx(x.std(), rel=1e-6)


def skewed(rows: int, seed: int = 0) -> list[Row]:
    """Requests of four rows; items are skewed."""
    random = np.random.default_rng(seed)
    empty: Row = dict.fromkeys(
        ["age", "price", "user", "last", "tags", "history", "item", "place", "code", "extras"]
    )
    items = np.minimum(random.zipf(1.5, rows), 50)
    return [
        empty
        | {"request": i // 4, "clicked": i % 2, "item": f"i{n}", "price": float(n), "user": f"u{i // 8}"}
        for i, n in enumerate(items)
    ]


def test_only_training_rows_count(small: Schema, write: Write) -> None:
    rows = skewed(400)
    reader = open_data(write(rows), small)
    splitter = fit_splitter(reader, small)
    found = calibrate(reader, small, splitter)
    assert found.rows == 288  # 400 * 0.8 * 0.9
    assert found.vocabularies["user"].counts.sum() == 72  # a context is looked up once for four rows
    assert found.standards["price"].mean == pytest.approx(np.mean([r["price"] for r in rows[:288]]))
    both = calibrate(reader, small, splitter, which=(0, 1))
    assert both.rows == 320
    assert set(by_value(found.vocabularies["user"])) < set(by_value(both.vocabularies["user"]))


def test_a_sample_decides_the_order_but_not_the_values(small: Schema, write: Write) -> None:
    rows = skewed(2000)
    reader = open_data(write(rows), small)
    whole = calibrate(reader, small, everything_trains)
    some = calibrate(reader, small, everything_trains, sample=0.2, seed=3)
    assert 300 < some.sampled_rows < 500
    assert some.rows == 2000
    for table, v in whole.vocabularies.items():
        if v.values is not None:
            assert some.vocabularies[table].values.equals(v.values)
    counts = some.vocabularies["item"].counts
    # item, and last_item missing, once a request
    assert counts.sum() == pytest.approx(1.25 * some.sampled_rows, rel=0.05)
    assert (np.diff(counts) <= 0).all()


def test_a_sample_is_repeatable_by_its_seed(small: Schema, write: Write) -> None:
    reader = open_data(write(skewed(400)), small)
    one, same, other = (
        calibrate(reader, small, everything_trains, sample=0.3, seed=seed) for seed in (1, 1, 2)
    )
    assert one.sampled_rows == same.sampled_rows
    for table, v in one.vocabularies.items():
        assert np.array_equal(v.rank_of_id, same.vocabularies[table].rank_of_id)
    assert not np.array_equal(one.vocabularies["item"].counts, other.vocabularies["item"].counts)


def test_a_full_sample_is_the_same_as_none(small: Schema, write: Write) -> None:
    reader = open_data(write(skewed(300)), small)
    full = calibrate(reader, small, everything_trains, sample=1.0)
    default = calibrate(reader, small, everything_trains)
    assert full.sampled_rows == default.sampled_rows == 300
    for table, v in full.vocabularies.items():
        assert np.array_equal(v.counts, default.vocabularies[table].counts)


@pytest.mark.parametrize("sample", [0.0, -0.1, 1.1, float("nan")])
def test_a_sample_that_is_no_share_is_rejected(sample: float, small: Schema, write: Write) -> None:
    with pytest.raises(DataError, match=r"is not a share in \(0, 1\]"):
        calibrate(open_data(write(skewed(4)), small), small, everything_trains, sample=sample)


def test_no_training_rows_is_rejected(small: Schema, write: Write) -> None:
    reader = open_data(write(skewed(8)), small)
    with pytest.raises(DataError, match="no rows to calibrate on"):
        calibrate(reader, small, Splitter(small.split, (-2, -1)))


def test_an_encoder_can_be_made_of_a_calibration(small: Schema, write: Write) -> None:
    reader = open_data(write(skewed(40)), small)
    found = calibrate(reader, small, everything_trains)
    encoder = Encoder(small, found.vocabularies, found.standards)
    seen = np.zeros(found.vocabularies["item"].rows, np.int64)
    for data in reader.batches(small.columns):
        batch = encoder.from_arrow(data)
        slot = [f.name for f in small.candidate.singles].index("item")
        seen += np.bincount(batch.candidate.ranks[:, slot], minlength=seen.size)
    seen[found.vocabularies["item"].missing_rank] += 10  # last_item, of as many requests
    assert np.array_equal(seen, found.vocabularies["item"].counts)


def test_requests_are_separated_across_batches(small: Schema, write: Write) -> None:
    # row groups of seven: requests of four rows lie across them
    reader = open_data(write(skewed(400)), small)
    found = calibrate(reader, small, everything_trains)
    users = by_value(found.vocabularies["user"])
    assert set(users.values()) == {2}  # two requests each
    sums = {t: int(v.counts.sum()) for t, v in found.vocabularies.items()}
    assert counted_lookups(small, sums) == {"context": 100, "candidate": 400}


def test_only_a_full_count_estimates_unseen_values(small: Schema, write: Write) -> None:
    found = calibrate(open_data(write(skewed(500)), small), small, everything_trains)
    assert found.sampled_rows == found.rows
    some = calibrate(open_data(write(skewed(500)), small), small, everything_trains, sample=0.5)
    # what a sample has not seen has rows of its own: nothing is counted ahead for it
    singles = some.vocabularies["code"]
    assert int(singles.counts.sum()) == some.sampled_rows


def assert_same(one: Calibration, other: Calibration) -> None:
    assert (one.rows, one.sampled_rows, one.standards) == (other.rows, other.sampled_rows, other.standards)
    assert list(one.vocabularies) == list(other.vocabularies)
    for table, v in one.vocabularies.items():
        w = other.vocabularies[table]
        assert (v.table, v.type, v.size, v.specials, v.oov) == (w.table, w.type, w.size, w.specials, w.oov)
        assert np.array_equal(v.rank_of_id, w.rank_of_id)
        assert np.array_equal(v.counts, w.counts)
        assert v.rank_of_id.dtype == w.rank_of_id.dtype == np.int64
        assert v.values is w.values is None or v.values.equals(w.values)


@given(data=st.data())
def test_a_saved_calibration_loads_as_it_was(
    data: st.DataObject,
    small: Schema,
    small_rows: Callable[..., Any],
    write: Write,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rows = data.draw(st.lists(small_rows(), min_size=1, max_size=10))
    found = calibrate(open_data(write(rows), small), small, everything_trains)
    path = tmp_path_factory.getbasetemp() / "saved.calibration"
    save_calibration(found, path)
    assert_same(found, load_calibration(path))


def test_a_saved_calibration_has_the_mode_of_the_umask(small: Schema, write: Write, tmp_path: Path) -> None:
    found = calibrate(open_data(write(skewed(4)), small), small, everything_trains)
    save_calibration(found, tmp_path / "c")
    (tmp_path / "other").touch()
    assert (tmp_path / "c").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "other"]


def test_a_calibration_that_cannot_be_written_or_read_says_so(
    small: Schema, write: Write, tmp_path: Path
) -> None:
    found = calibrate(open_data(write(skewed(4)), small), small, everything_trains)
    with pytest.raises(DataError, match="cannot write"):
        save_calibration(found, tmp_path / "nowhere" / "c")
    with pytest.raises(DataError, match="no calibration file"):
        load_calibration(tmp_path / "c")
    (tmp_path / "c").write_bytes(b"not safetensors")
    with pytest.raises(DataError, match="is not a calibration file"):
        load_calibration(tmp_path / "c")
    save_file({"a": np.zeros(1)}, tmp_path / "c")
    with pytest.raises(DataError, match="is not a calibration file"):
        load_calibration(tmp_path / "c")


def test_a_calibration_of_another_schema_is_rejected(small: Schema, write: Write, tmp_path: Path) -> None:
    save_calibration(calibrate(open_data(write(skewed(4)), small), small, everything_trains), tmp_path / "c")
    assert load_calibration(tmp_path / "c", small).rows == 4
    item = small.categorical[0].model_copy(update={"name": "color"})
    wider = small.model_copy(update={"categorical": (*small.categorical, item)})
    longer = small.model_copy(
        update={
            "categorical": tuple(
                f.model_copy(update={"cardinality": 9}) if f.name == "place" else f for f in small.categorical
            )
        }
    )
    denser = small.model_copy(update={"dense": (*small.dense, Dense(name="weight"))})
    for edited, message in [
        (wider, "no table 'color'"),
        (longer, "table 'place' has another type, cardinality or oov rule"),
        (denser, "no dense feature 'weight'"),
    ]:
        schema = Schema.model_validate(edited.model_dump())
        with pytest.raises(DataError, match=f"was made with another schema.*{message}"):
            load_calibration(tmp_path / "c", schema)


def test_arrays_that_do_not_fit_together_are_rejected(small: Schema, write: Write) -> None:
    found = calibrate(open_data(write(skewed(40)), small), small, everything_trains)
    arrays, descriptors = vocabulary_tensors(found.vocabularies)
    for name, broken in [
        ("item.offsets", arrays["item.offsets"][:-1]),
        ("item.offsets", arrays["item.offsets"][::-1]),
        ("item.values", arrays["item.values"] | np.uint8(0x80)),
        ("item.values", arrays["item.values"][:-1]),
        ("item.rank_of_id", arrays["item.rank_of_id"] * 0),
        ("item.counts", arrays["item.counts"][:-1]),
    ]:
        with pytest.raises(DataError, match="the vocabulary of table 'item' is corrupt"):
            vocabularies_from_tensors(arrays | {name: broken}, descriptors)
    del arrays["item.counts"]
    with pytest.raises(DataError, match=r"table 'item' lacks its array 'item\.counts'"):
        vocabularies_from_tensors(arrays, descriptors)


def test_skew_is_the_share_of_the_hottest_rows() -> None:
    counts = np.array([50, 20, *[1] * 30, *[0] * 68])
    assert skew(counts) == {0.01: 0.5, 0.05: 0.73, 0.10: 0.78}
    assert skew(np.zeros(3, np.int64)) == {0.01: 0.0, 0.05: 0.0, 0.10: 0.0}


def test_the_fingerprint_tells_calibrations_apart(small: Schema, write: Write) -> None:
    prints = []
    for item in ("a", "a", "b"):
        rows = [{"request": i, "item": item, "user": "u", "clicked": 1} for i in range(9)]
        reader = open_data(write(rows), small)
        prints.append(calibrate(reader, small, fit_splitter(reader, small)).fingerprint())
    assert prints[0] == prints[1] != prints[2]
