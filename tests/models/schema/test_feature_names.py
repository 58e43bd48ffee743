"""Names that columns get so that features can have them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.feature_names import is_usable, new_names
from polyrec.models.schema.schema import Categorical, Schema


@given(st.lists(st.text(max_size=80), unique=True, max_size=8), st.sets(st.sampled_from(["a", "b", "a_2"])))
def test_new_names_are_usable_and_each_is_new(columns: list[str], known: set[str]) -> None:
    found = new_names(columns, known)
    assert list(found) == columns
    assert len(set(found.values()) - known) == len(columns)
    assert all(map(is_usable, found.values()))


@given(st.text(max_size=70))
def test_a_usable_name_is_one_that_a_schema_takes(name: str) -> None:
    try:
        Schema.model_validate(
            {
                "name": "s",
                "categorical": [Categorical(name=name)],
                "label": {"column": "the label"},
                "split": {"rule": "hash", "columns": ["the label"]},
            }
        )
    except ValueError:
        assert not is_usable(name)
    else:
        assert is_usable(name)


def test_a_new_name_is_like_the_old_one() -> None:
    names = ["article no", "Größe", "item-id", "item.id", "日本", "probability"]
    new = ["article_no", "groe", "item_id", "item_id_2", "column", "column_probability"]
    assert list(new_names(names, names).values()) == new
