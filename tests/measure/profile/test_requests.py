from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from polyrec.loadtest.traffic.feature_draws import UNKNOWN_BAG, bag_lengths
from polyrec.measure.profile.requests import Requests
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Dense, Schema
from polyrec.models.schema.vocabulary import Vocabulary


def drawn(bundle: Bundle, seed: int = 0) -> Requests:
    return Requests(bundle.encoder, np.random.default_rng(seed))


def vocabulary(table: str, counts: list[int], oov: str = "row") -> Vocabulary:
    """Integers 0 ..., most accessed first, then missing and unknown."""
    rows = len(counts)
    size = rows - 2
    ranked = sorted(range(rows), key=lambda i: -counts[i])
    rank_of_id = np.empty(rows, np.int64)
    rank_of_id[ranked] = np.arange(rows)
    return Vocabulary(
        table,
        "integer",
        size,
        rank_of_id,
        np.array(sorted(counts, reverse=True), np.int64),
        oov=oov,  # type: ignore[arg-type]
    )


def schema_of(name: str, features: tuple[Categorical, ...]) -> Schema:
    rest = {"label": {"column": "y"}, "split": {"rule": "hash", "columns": ("y",)}}
    return Schema.model_validate({"name": name, "dense": (), "categorical": features, **rest})


def one_table(counts: list[int], oov: str = "row", multi: bool = False) -> Requests:
    feature = Categorical(name="item", role="candidate", type="integer", pooling="sum" if multi else None)
    schema = schema_of("one", (feature,))
    encoder = Encoder(schema, {"item": vocabulary("item", counts, oov)}, {})
    return Requests(encoder, np.random.default_rng(0))


def test_a_ranking_has_one_context_and_encodes_as_a_lane_does(bundle: Bundle) -> None:
    requests = drawn(bundle)
    context, candidates = requests.request(23)
    assert {len(column) for column in context.values()} == {1}
    assert {len(column) for column in candidates.values()} == {23}
    batch = requests.encode(context, candidates, 23)
    assert (batch.context.rows, batch.rows) == (1, 23)
    assert batch.context_row is not None
    assert not batch.context_row.any()


def test_every_request_is_another_and_a_seed_gives_the_same(bundle: Bundle) -> None:
    requests = drawn(bundle)
    first, second = requests.request(64), requests.request(64)
    assert first != second
    again = drawn(bundle)
    assert [again.request(64), again.request(64)] == [first, second]


def test_values_come_as_often_as_they_were_counted(bundle: Bundle) -> None:
    v = bundle.encoder.vocabularies["item"]
    requests = drawn(bundle)
    ranks = np.concatenate(
        [requests.encode(*requests.request(4096), 4096).candidate.ranks for _ in range(12)]
    )
    place = [f.name for f in bundle.manifest.schema_.candidate.singles].index("item")
    seen = np.bincount(ranks[:, place], minlength=v.rows) / len(ranks)
    assert seen[:30] == pytest.approx(v.counts[:30] / v.counts.sum(), abs=0.006)


def test_missing_and_unknown_values_are_drawn_as_they_were_counted() -> None:
    values = Counter(one_table([500, 0, 300, 200]).request(10_000)[1]["item"])
    assert set(values) == {0, None, -1}
    assert values[None] == pytest.approx(3000, rel=0.1)
    assert values[-1] == pytest.approx(2000, rel=0.1)


def test_values_that_a_table_refuses_are_not_drawn() -> None:
    requests = one_table([500, 10, 0, 200], oov="refuse")
    context, candidates = requests.request(5000)
    assert set(candidates["item"]) == {0, 1}
    assert requests.encode(context, candidates, 5000).rows == 5000


def test_without_any_counts_all_values_are_alike() -> None:
    values = Counter(one_table([0, 0, 0, 0, 0, 0]).request(8000)[1]["item"])
    assert set(values) == {0, 1, 2, 3}
    assert min(values.values()) == pytest.approx(2000, rel=0.15)


def test_lists_have_no_missing_values() -> None:
    lists = one_table([50, 20, 900, 30], multi=True).request(3000)[1]["item"]
    assert {value for values in lists for value in values} == {0, 1, -1}


def test_rows_of_one_role_are_plain() -> None:
    requests = one_table([3, 2, 1, 1])
    assert not requests.ranking
    assert requests.encode(*requests.request(7), 7).context_row is None


def test_lengths_of_lists_follow_from_the_counts() -> None:
    features = (
        Categorical(name="city", role="context", type="integer"),
        Categorical(name="item", role="candidate", type="integer"),
        Categorical(name="seen", role="context", type="integer", table="item", pooling="mean"),
        Categorical(name="tags", role="context", type="integer", pooling="sum", max_length=2),
    )
    schema = schema_of("several", features)
    vocabularies = {
        "city": vocabulary("city", [60, 40, 0, 0]),
        "item": vocabulary("item", [200, 150, 0, 0]),
        "tags": vocabulary("tags", [900, 100, 0, 0]),
    }
    # 100 rows; the items' 350 accesses are 100 of `item` and 250 of `seen`; tags would be 10 a row
    assert bag_lengths(schema, vocabularies) == {"seen": 2.5, "tags": 2.0}


def test_lengths_of_lists_follow_from_the_rows_counted_where_no_single_value_shows_them() -> None:
    features = tuple(Categorical(name=n, type="integer", pooling="sum") for n in ("seen", "tags"))
    schema = schema_of("lists", features)
    vocabularies = {"seen": vocabulary("seen", [200, 100, 0]), "tags": vocabulary("tags", [40, 10, 0])}
    assert bag_lengths(schema, vocabularies) == {"seen": UNKNOWN_BAG, "tags": UNKNOWN_BAG}
    assert bag_lengths(schema, vocabularies, {"candidate": 100}) == {"seen": 3.0, "tags": 0.5}


def test_numbers_have_their_mean_and_deviation_after_the_transforms(bundle: Bundle) -> None:
    requests = drawn(bundle)
    schema = bundle.manifest.schema_
    dense = requests.encode(*requests.request(4096), 4096).candidate.dense
    for i, d in enumerate(schema.candidate.supplied):
        assert isinstance(d, Dense)
        if "standardise" in d.transform and "log1p" not in d.transform:
            assert abs(float(dense[:, i].mean())) < 0.1
            assert float(dense[:, i].std()) == pytest.approx(1.0, abs=0.1)
