from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from polyrec.models.data.reader import open_data
from polyrec.models.data.split import fit_splitter
from polyrec.models.data.synthetic.generator import REQUESTS_AT_ONCE, generate
from polyrec.models.errors import DataError
from polyrec.models.schema.popularity import calibrate, skew
from polyrec.models.schema.schema import load_schema

ROWS = 120_000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "clicks.parquet"
    generate(path, ROWS, 7)
    return path


@pytest.fixture(scope="module")
def clicks(file: Path) -> pa.Table:
    return pq.read_table(file)


def test_exactly_the_requested_rows_are_written(tmp_path: Path) -> None:
    for rows in (1, 24, 5000):
        written = generate(tmp_path / "f.parquet", rows, 0, items=100, users=10)
        table = pq.read_table(written.path)
        assert table.num_rows == written.rows == rows
        assert len(pc.unique(table["request_id"])) == written.requests
        assert pc.sum(table["clicked"]).as_py() == written.clicks
    assert [p.name for p in tmp_path.iterdir()] == ["f.parquet"]


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path: Path) -> None:
    tables = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate(tmp_path / name, 3000, seed, items=200, users=50)
        tables.append(pq.read_table(tmp_path / name))
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


def test_requests_have_one_context_and_many_different_candidates(clicks: pa.Table) -> None:
    request = clicks["request_id"].to_numpy()
    assert (np.diff(request) >= 0).all()
    ends = np.flatnonzero(np.diff(request, append=-1))
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    assert lengths.max() == 25
    assert 15 < lengths.mean() < 25
    for name in ("user_id", "platform", "city", "device", "last_item", "filters", "recent_items"):
        context = clicks[name].combine_chunks()
        assert context.take(pa.array(np.repeat(starts, lengths))).equals(context), name
    position = clicks["position"].to_numpy()
    assert np.array_equal(position, np.arange(ROWS) - np.repeat(starts, lengths))
    pairs = set(zip(request.tolist(), clicks["item"].to_pylist(), strict=True))
    assert len(pairs) == ROWS


def test_seen_agrees_with_the_history(clicks: pa.Table) -> None:
    rows = clicks.slice(0, 5000).to_pylist()
    for row in rows:
        assert row["last_item"] == (row["recent_items"][0] if row["recent_items"] else None)
        seen = 2 if row["item"] == row["last_item"] else int(row["item"] in row["recent_items"])
        assert row["seen"] == seen
        assert len(set(row["recent_items"])) == len(row["recent_items"]) <= 10
        assert len(set(row["filters"])) == len(row["filters"])
    assert {row["seen"] for row in rows} == {0, 1, 2}


def test_price_rank_is_the_place_of_the_price_in_its_request(clicks: pa.Table) -> None:
    names = ("request_id", "price", "price_rank")
    request, price, rank = (clicks[name].slice(0, 2000).to_numpy() for name in names)
    for r in range(1, int(request.max())):
        own = request == r
        order = np.argsort(rank[own])
        assert (np.diff(price[own][order]) >= 0).all()
        assert np.allclose(rank[own][order], np.arange(1, own.sum() + 1) / own.sum())


def test_the_shipped_trivago_schema_reads_it(file: Path) -> None:
    schema = load_schema("trivago")
    reader = open_data(file, schema)
    splitter = fit_splitter(reader, schema)
    found = calibrate(reader, schema, splitter)
    assert found.rows == pytest.approx(0.72 * ROWS, rel=0.01)
    for table in ("position", "seen"):
        v = found.vocabularies[table]
        assert v.counts[v.oov_rank] == v.counts[v.missing_rank] == 0


def test_accesses_are_skewed_as_in_real_traces(file: Path) -> None:
    schema = load_schema("trivago")
    reader = open_data(file, schema)
    found = calibrate(reader, schema, fit_splitter(reader, schema))
    item, city = (skew(found.vocabularies[t].counts) for t in ("item", "city"))
    assert 0.2 < item[0.05] < 0.7
    assert 0.2 < city[0.05] < 0.7


def test_clicks_are_drawn_from_the_planted_probability(clicks: pa.Table) -> None:
    clicked, planted = clicks["clicked"].to_numpy(), clicks["planted"].to_numpy()
    assert planted.min() > 0
    assert planted.max() < 1
    assert clicked.mean() == pytest.approx(0.05, abs=0.01)
    order = np.argsort(planted)
    for part in np.array_split(order, 10):
        expected, spread = planted[part].sum(), np.sqrt((planted[part] * (1 - planted[part])).sum())
        assert abs(clicked[part].sum() - expected) < 5 * spread


def test_the_ceiling_is_far_above_a_single_feature(clicks: pa.Table) -> None:
    clicked = clicks["clicked"].to_numpy()
    ceiling = roc_auc_score(clicked, clicks["planted"].to_numpy())
    by_position = roc_auc_score(clicked, -clicks["position"].to_numpy())
    by_price = roc_auc_score(clicked, -clicks["price_rank"].to_numpy())
    assert 0.82 < ceiling < 0.99
    assert 0.6 < by_position < ceiling - 0.05
    assert 0.55 < by_price < ceiling - 0.05


def test_drift_turns_popularity_over_time(tmp_path: Path) -> None:
    overlap = {}
    for drift in (0.0, 0.5):
        path = tmp_path / f"{drift}.parquet"
        generate(path, 120_000, 0, items=100, users=50, drift=drift)
        item = pq.read_table(path)["item"]
        early, late = (
            set(pc.value_counts(part).sort("descending", by="counts").field("values")[:20].to_pylist())
            for part in (item.slice(0, 10_000), item.slice(110_000))
        )
        overlap[drift] = len(early & late)
    assert overlap[0.0] > overlap[0.5] + 5


def test_tastes_turn_until_early_clicks_say_nothing_of_late_ones(tmp_path: Path) -> None:
    like = {}
    for tastes in (0.0, 1.0):
        path = tmp_path / f"{tastes}.parquet"
        generate(path, 400_000, 0, items=100, users=50, tastes=tastes)
        table = pq.read_table(path)
        rates = []
        for part in (table.slice(0, 40_000), table.slice(360_000)):
            by_item = part.group_by("item").aggregate([("planted", "mean")]).sort_by("item")
            rates.append(by_item["planted_mean"].to_numpy())
        like[tastes] = np.corrcoef(*rates)[0, 1]
    assert like[0.0] > 0.95
    assert abs(like[1.0]) < 0.5


def test_rows_are_written_in_parts(file: Path) -> None:
    metadata = pq.ParquetFile(file).metadata
    largest = max(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    assert largest <= REQUESTS_AT_ONCE * 25


def test_impossible_sizes_and_paths_are_rejected(tmp_path: Path) -> None:
    for arguments in ({"rows": 0}, {"rows": 5, "items": 49}, {"rows": 5, "users": 0}):
        with pytest.raises(DataError, match="cannot generate"):
            generate(tmp_path / "f", **arguments)
    with pytest.raises(DataError, match="cannot write"):
        generate(tmp_path / "nowhere" / "f", 5)


@pytest.mark.parametrize("candidates", [1, 3, 10, 50])
def test_requests_have_the_given_number_of_candidates(candidates: int, tmp_path: Path) -> None:
    path = generate(tmp_path / "f.parquet", 4000, items=200, users=50, candidates=candidates).path
    request = pq.read_table(path, columns=["request_id"])["request_id"].to_numpy()
    lengths = np.unique(request, return_counts=True)[1]
    assert lengths.max() == candidates
    assert np.mean(lengths[:-1] == candidates) > 0.5


@pytest.mark.parametrize("candidates", [0, 51])
def test_more_candidates_than_a_city_has_items_are_rejected(candidates: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"cannot show {candidates} candidates"):
        generate(tmp_path / "f.parquet", 100, candidates=candidates)
