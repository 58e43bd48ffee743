from __future__ import annotations

import re
import shlex
import subprocess
import sys
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from polyrec.models.data.guess.schema_guess import guess_schema
from polyrec.models.errors import SchemaError
from polyrec.models.schema.schema import Schema, load_schema

ROWS, PER_REQUEST = 2000, 5


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    """Rows of requests of five, with a column of each kind."""
    random = np.random.default_rng(0)
    request = np.arange(ROWS) // PER_REQUEST
    items = [f"i{i}" for i in random.integers(0, 500, ROWS)]
    return {
        "query_id": request,
        "user_id": [f"u{r % 150}" for r in request],
        "last_item": [items[r * PER_REQUEST] for r in request],
        "tags": [[f"t{r % 7}"] * (r % 4) for r in request],
        "item": items,
        "price": np.exp(random.normal(3, 1.5, ROWS)),
        "share": random.random(ROWS),
        "slot": np.arange(ROWS) % PER_REQUEST,
        "sponsored": random.random(ROWS) < 0.1,
        "category_id": random.integers(0, 10**9, 40)[random.integers(0, 40, ROWS)],
        "row_key": [f"k{i}" for i in range(ROWS)],
        "always": ["x"] * ROWS,
        "raw": [b"\0"] * ROWS,
        "fold": random.integers(0, 5, ROWS),
        "at": [datetime(2026, 1, 1) + timedelta(seconds=int(r)) for r in request],
        "clicked": (random.random(ROWS) < 0.2).astype(int),
    }


@pytest.fixture
def file(columns: dict[str, Any], tmp_path: Path) -> Path:
    pq.write_table(pa.table(columns), tmp_path / "my clicks.parquet")
    return tmp_path / "my clicks.parquet"


def test_columns_are_guessed_by_their_values(file: Path) -> None:
    guess = guess_schema(file)
    schema = guess.schema
    assert (schema.name, schema.group, schema.label.column) == ("my_clicks", "query_id", "clicked")
    assert (schema.split.rule, schema.split.columns) == ("time", ("at",))
    assert schema.context.names == ("user_id", "last_item", "tags")
    assert set(schema.candidate.names) == {"price", "share", "item", "slot", "sponsored", "category_id"}
    features = {f.name: f for f in (*schema.dense, *schema.categorical)}
    assert features["price"].transform == ("log1p", "standardise")  # type: ignore[union-attr]
    assert features["share"].transform == ("standardise",)  # type: ignore[union-attr]
    ids = {f.name: f for f in schema.categorical}
    assert (ids["slot"].type, ids["slot"].cardinality) == ("integer", 5)
    assert (ids["sponsored"].type, ids["sponsored"].cardinality) == ("integer", 2)
    assert (ids["category_id"].type, ids["category_id"].cardinality) == ("integer", None)
    assert (ids["tags"].pooling, ids["tags"].max_length) == ("mean", 4)
    assert ids["last_item"].table == "item"
    assert set(guess.left_out) == {"query_id", "at", "row_key", "always", "raw", "fold"}


def test_a_number_that_tells_the_label_is_left_out(columns: dict[str, Any], tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    clicked = columns["clicked"]
    columns = columns | {
        "seconds_read": np.where(clicked, 30.0, 0.0) + random.random(ROWS),
        "seconds_until_gone": 9 - 5 * clicked,
        "hint": clicked + random.normal(0, 1, ROWS),
    }
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    guess = guess_schema(tmp_path / "f.parquet")
    assert "alone it predicts the label (AUC 1.00)" in guess.left_out["seconds_read"]
    assert "seconds_until_gone" in guess.left_out
    assert "hint" in guess.schema.candidate.names


def test_an_id_whose_values_do_not_come_again_is_left_out(columns: dict[str, Any], tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    visit = np.arange(ROWS) // 20
    columns = columns | {"visit_id": 7 * visit, "basket": [f"b{v}" for v in visit]}
    # the order of the rows does not matter, that of their times does; requests stay in one piece
    order = (random.permutation(ROWS // PER_REQUEST)[:, None] * PER_REQUEST + np.arange(PER_REQUEST)).ravel()
    shuffled = pa.table(columns).take(order)
    pq.write_table(shuffled, tmp_path / "f.parquet")
    guess = guess_schema(tmp_path / "f.parquet")
    for column in ("visit_id", "basket"):
        assert "only 0% of the newest rows" in guess.left_out[column]
    assert {"user_id", "last_item", "item", "category_id"} <= {f.name for f in guess.schema.categorical}
    pq.write_table(shuffled.drop_columns(["at"]), tmp_path / "f.parquet")
    assert "basket" in guess_schema(tmp_path / "f.parquet").schema.context.names


def test_the_file_is_the_schema_and_says_why(file: Path, tmp_path: Path) -> None:
    guess = guess_schema(file)
    text = guess.as_yaml("clicks.parquet")
    (tmp_path / "s.yaml").write_text(text)
    assert load_schema(tmp_path / "s.yaml") == guess.schema == Schema.model_validate(yaml.safe_load(text))
    for column in ("price", "item", "tags"):
        (line,) = [line for line in text.splitlines() if re.search(rf"name: {column}[,}}]", line)]
        assert line.endswith(f"# {guess.reasons[column]}")
    assert text.splitlines()[1].startswith("# from the first 2,000 rows: ")
    assert "#   row_key: 2,000 values in 2,000 rows: it identifies the row" in text


def test_without_groups_and_time_rows_are_split_by_ids(columns: dict[str, Any], tmp_path: Path) -> None:
    kept = {name: columns[name] for name in ("user_id", "item", "price", "clicked")}
    pq.write_table(pa.table(kept), tmp_path / "f.parquet")
    schema = guess_schema(tmp_path / "f.parquet").schema
    assert schema.group is None
    assert (schema.split.rule, schema.split.columns) == ("hash", ("user_id", "item"))
    assert schema.context.names == ("user_id",)
    assert set(schema.candidate.names) == {"price", "item"}


def test_numbers_that_name_things_are_ids_and_counts_of_them_are_not(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    things = ("article", "customer", "videos")
    columns = {name: random.zipf(1.2, ROWS) % 900 for name in things} | {"clicked": np.arange(ROWS) % 4 == 0}
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    schema = guess_schema(tmp_path / "f.parquet").schema
    assert [f.name for f in schema.categorical] == ["article", "customer"]
    assert [f.name for f in schema.dense] == ["videos"]
    assert schema.context.names == ("customer",)


def test_a_hash_of_users_takes_an_item_rather_than_another_column_of_the_user(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    user = random.integers(0, 150, ROWS)
    facts = {"user_id": [f"u{u}" for u in user], "gender": [("f", "m")[u % 2] for u in user]}
    items = {"item": [f"i{i}" for i in random.integers(0, 500, ROWS)]}
    table = pa.table({**facts, **items, "clicked": (random.random(ROWS) < 0.2).astype(int)})
    pq.write_table(table, tmp_path / "ratings.parquet")
    assert guess_schema(tmp_path / "ratings.parquet").schema.split.columns == ("user_id", "item")


def test_a_rating_is_a_label_with_a_threshold(columns: dict[str, Any], tmp_path: Path) -> None:
    stars = np.random.default_rng(1).choice([1, 2, 3, 4, 5], ROWS, p=[0.1, 0.1, 0.2, 0.3, 0.3])
    pq.write_table(pa.table({"item": columns["item"], "rating": stars}), tmp_path / "f.parquet")
    guess = guess_schema(tmp_path / "f.parquet")
    assert (guess.schema.label.column, guess.schema.label.positive_above) == ("rating", 3)
    assert "positive above 3" in guess.reasons["label"]


@pytest.mark.parametrize(
    ("data", "label", "group", "context"),
    [
        ("trivago/impressions.parquet", "clicked", "request_id", {"user_id", "city", "filters", "last_item"}),
        ("ml1m/ratings.parquet", "liked", None, {"user_id", "age"}),
        ("bookcrossing/ratings.parquet", "rating", None, {"user_id", "country"}),
    ],
)
def test_real_files_are_understood(
    shared_data: Path, data: str, label: str, group: str | None, context: set[str]
) -> None:
    schema = guess_schema(shared_data / data).schema
    assert (schema.label.column, schema.group) == (label, group)
    assert context <= set(schema.context.names)
    tables = {f.name: f.table_name for f in schema.categorical}
    assert "session_id" not in tables
    if group:
        assert tables["last_item"] == tables["recent_items"] == "item"


UNUSUAL = {
    "shade": (pa.array(["red", "blue"] * (ROWS // 2)).dictionary_encode(), "text, 2 values"),
    "level": (pa.array([0, 1] * (ROWS // 2)).dictionary_encode(), "the integers 0 to 1"),
    "style": (pa.array(["red", "blue"] * (ROWS // 2), pa.string_view()), "text, 2 values"),
    "pair": (pa.array([[1, 2]] * ROWS, pa.list_(pa.int32(), 2)), "lists of up to 2 of 2 values"),
    "vector": (pa.array([[0.5, 2]] * ROWS, pa.list_(pa.float32(), 2)), "make columns of its numbers"),
    "inner": (pa.array([{"a": 1}] * ROWS), "nested"),
    "extra": (pa.array([[("k", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())), "nested"),
    "never": (pa.nulls(ROWS), "missing in all rows"),
    "nothing": (pa.nulls(ROWS, pa.float64()), "missing in all rows"),
    "endless": (pa.array([float("nan"), float("inf")] * (ROWS // 2)), "missing or infinite in all rows"),
    "hollow": (pa.array([[]] * ROWS, pa.list_(pa.int64())), "empty in all rows"),
    "hashed": (
        pa.array([2**63 + 2**20 * i for i in range(ROWS)], pa.uint64()),
        "beyond 2^63 - 1: write them as",
    ),
    "sample_weight": (pa.array([1.0, 2.5] * (ROWS // 2)), "a weight of the row: training weights all"),
    "large": (pa.array([2**60 + i % 9 for i in range(ROWS)]), "beyond 2^53, so an id, 9 values"),
    "amount": (
        pa.array(["n/a" if i % 9 == 0 else f"{i % 99}.5" for i in range(ROWS)]),
        "not 'n/a': if it is",
    ),
    "zip": (pa.array([f"0{i % 99}" for i in range(ROWS)]), "text, 99 values; "),
    "words": (
        pa.array([f"w{i % 7}|v{i // 7 % 7}|u{i // 49 % 7}|t{i // 343 % 7}" for i in range(ROWS)]),
        "with '|': if they",
    ),
    "stay": (pa.array([timedelta(seconds=i) for i in range(ROWS)]), "make it a number"),
    "costs": (pa.array([Decimal(i) / 4 for i in range(ROWS)]), "a number"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_column_of_any_type_is_a_feature_or_left_out_with_the_reason(
    columns: dict[str, Any], tmp_path: Path, name: str
) -> None:
    values, why = UNUSUAL[name]
    pq.write_table(pa.table(columns | {name: values}), tmp_path / "f.parquet")
    guess = guess_schema(tmp_path / "f.parquet")
    assert why in (guess.reasons | guess.left_out)[name]
    assert guess.schema.split.columns == ("at",)


def test_the_column_that_tells_requests_apart_may_be_their_time_but_no_list(file: Path) -> None:
    assert guess_schema(file, group="at").schema.group == "at"
    with pytest.raises(SchemaError, match="'tags' is list<element: string>: it cannot identify requests"):
        guess_schema(file, group="tags")


def test_a_column_that_no_feature_can_be_named_like_is_left_out_with_another_name(
    columns: dict[str, Any], tmp_path: Path
) -> None:
    odd = {"article no": columns["item"], "Preis (EUR)": columns["price"], "sparse": columns["slot"]}
    odd |= {"article_no": columns["category_id"], "2nd": columns["slot"], "Unnamed: 0": columns["row_key"]}
    pq.write_table(pa.table(columns | odd), tmp_path / "f.parquet")
    guess = guess_schema(tmp_path / "f.parquet")
    new = {"article no": "article_no_2", "Preis (EUR)": "preis_eur", "sparse": "column_sparse"}
    assert guess.renames == new | {"2nd": "column_2nd"}
    assert "rename it, say to preis_eur" in guess.left_out["Preis (EUR)"]
    assert guess.left_out["Unnamed: 0"] == "by its name, how the file was made"


def test_without_an_id_the_columns_to_rename_are_named(tmp_path: Path) -> None:
    table = pa.table({"article no": ["a", "b"] * 50, "price": [1.5, 2, 3, 4] * 25, "clicked": [0, 1] * 50})
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(SchemaError, match=r"a schema needs one; rename \['article no'\], as no feature has"):
        guess_schema(tmp_path / "f.parquet")


def test_a_label_in_words_is_refused_with_a_command_that_makes_one(
    columns: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["yes" if clicked else "no" for clicked in columns["clicked"]]
    for part in range(2):
        folder = tmp_path / "it's [1]" / f"dt={part}"
        folder.mkdir(parents=True)
        rows = pa.table(columns | {"clicked": pa.array(words, pa.string_view())}).slice(
            part * ROWS // 2, ROWS // 2
        )
        pq.write_table(rows, folder / "part-0.parquet")
        (folder / "part-0.csv").touch()
    for label in (None, "clicked"):
        # not another column of two values in its place, with the label among the features
        with pytest.raises(
            SchemaError, match=r"'clicked' .* is text \('no', 'yes'\); a label is a number"
        ) as e:
            guess_schema("it's [1]", label=label)
    program, *arguments = shlex.split(str(e.value).partition("copy: ")[2])
    subprocess.run([{"python": sys.executable}[program], *arguments], check=True)
    made = pq.read_table("labeled.parquet")
    assert made["clicked"].to_pylist() == [word == "yes" for word in words]
    assert guess_schema("labeled.parquet").schema.label.column == "clicked"


@pytest.mark.parametrize(
    ("values", "positive"), [(["Good", "bad", "bad"], "Good"), (["true", "false", "true"], "true")]
)
def test_text_label_uses_the_conventional_or_rarer_value_as_positive(
    values: list[str], positive: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"user": ["a", "b", "a"], "label": values}), tmp_path / "words.parquet")
    with pytest.raises(SchemaError, match=f"c.equal.*{positive}"):
        guess_schema(tmp_path / "words.parquet")


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ({"label": ["Decca", "Chess", "Sub Pop"]}, {"skipped": [0, 1, 1]}),
        ({"target": ["mobile", "desktop", "mobile"]}, {"skipped": [True, False, True]}),
        ({"clicked": ["no", "yes", "no"]}, {"rating": [1, 3, 5]}),
    ],
)
def test_beside_a_text_that_may_be_the_label_the_other_column_is_named(
    words: dict[str, Any], number: dict[str, Any], tmp_path: Path
) -> None:
    pq.write_table(pa.table({"user": ["a", "b", "a"]} | words | number), tmp_path / "f.parquet")
    (other,) = number
    with pytest.raises(SchemaError, match=rf"is text .*\(if another column is the label: --label {other}\)"):
        guess_schema(tmp_path / "f.parquet")
    assert guess_schema(tmp_path / "f.parquet", label=other).schema.label.column == other


def test_beside_a_label_that_is_a_number_words_are_features_unless_they_tell_it(
    columns: dict[str, Any], tmp_path: Path
) -> None:
    words = {
        "gender": ["f" if i % 2 else "m" for i in range(ROWS)],
        "label": [("Decca", "Chess", "Sub Pop")[i % 3] for i in range(ROWS)],
        "outcome": [
            ("bought" if i % 2 else "opened") if c else "none" for i, c in enumerate(columns["clicked"])
        ],
    }
    pq.write_table(pa.table(columns | words), tmp_path / "f.parquet")
    guess = guess_schema(tmp_path / "f.parquet")
    assert guess.schema.label.column == "clicked"
    assert {"gender", "label"} <= {f.name for f in guess.schema.categorical}
    assert "alone it predicts the label (AUC 1.00)" in guess.left_out["outcome"]


def test_few_clicks_tell_no_text(columns: dict[str, Any], tmp_path: Path) -> None:
    clicked = (np.arange(ROWS) == 7).astype(int)
    city = [f"c{i % 30}" for i in range(ROWS)]
    pq.write_table(pa.table(columns | {"clicked": clicked, "city": city}), tmp_path / "f.parquet")
    assert guess_schema(tmp_path / "f.parquet").reasons["city"].startswith("text, 30 values")


def test_a_label_of_more_than_two_words_has_no_command(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["a", "b", "a"], "label": ["x", "y", "z"]}), tmp_path / "words.parquet")
    with pytest.raises(SchemaError, match=r"'x', 'y', 'z'\).*say 1 for a click and 0 for none$"):
        guess_schema(tmp_path / "words.parquet")


def test_times_and_lists_stored_as_text_are_reported(columns: dict[str, Any], tmp_path: Path) -> None:
    texts = {"at": [str(t) for t in columns["at"]], "tags": [f"t{i % 9}|t{i % 11}" for i in range(ROWS)]}
    texts |= {"city": [f"Town {i % 50}, Land {i % 5}" for i in range(ROWS)]}
    pq.write_table(pa.table(columns | texts), tmp_path / "texts.parquet")
    guess = guess_schema(tmp_path / "texts.parquet")
    assert guess.left_out["at"] == "a time as text: write it as a timestamp, and rows are split by it"
    assert "100% of them with '|': if they are lists" in guess.reasons["tags"]
    assert "lists" not in guess.reasons["city"]


def test_all_files_of_a_folder_are_examined(columns: dict[str, Any], tmp_path: Path) -> None:
    table = pa.table(columns)
    for day in range(4):
        folder = tmp_path / f"day={day}"
        folder.mkdir()
        pq.write_table(table.slice(day * 500, 500), folder / "part-0.parquet")
    pq.write_table(table.select(["clicked"]), tmp_path / "z.parquet")  # left to the reader, which names it
    whole = guess_schema(tmp_path).reasons["user_id"]
    assert whole.startswith("text, 150 values")
