"""Values of hashed features are replaced by keyed hashes that fit their columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.models.schema.schema import Schema
from polyrec.server.prediction_log.privacy import (
    KEY_BYTES,
    KEY_FILE,
    REMEMBERED_LENGTH,
    PrivacyError,
    hide_functions,
    load_key,
)

SCHEMA = Schema.model_validate(
    {
        "name": "clicks",
        "dense": [{"name": "price"}],
        "categorical": [
            {"name": "user", "role": "context"},
            {"name": "recent", "table": "item", "pooling": "mean"},
            {"name": "item"},
            {"name": "shop", "type": "integer"},
            {"name": "hour", "type": "integer", "cardinality": 24},
        ],
        "label": {"column": "clicked"},
        "split": {"rule": "hash", "columns": ["user"]},
    }
)
KEY = bytes(range(KEY_BYTES))


def test_strings_become_hexadecimal_digits_and_integers_stay_integers_of_62_bits() -> None:
    hide = hide_functions(SCHEMA, (), ("user", "shop", "recent", "item"), KEY)
    long = "x" * (REMEMBERED_LENGTH + 1)
    names = ["", "a", "b", long]
    hidden = [hide["user"](name) for name in names]
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in hidden)
    numbers = [hide["shop"](n) for n in range(200)]
    assert all(isinstance(n, int) and 0 <= n < 2**62 for n in numbers)
    assert max(numbers) > 2**61
    assert len({*hidden, *numbers}) == len(hidden) + len(numbers)
    # equal values stay equal, wherever they are, and missing ones missing
    assert [hide["item"](name) for name in names] == hidden
    assert hide["recent"]([long, None, "a"]) == [hidden[3], None, hidden[1]]
    assert hide["user"](None) is None


def test_hashes_depend_on_the_key() -> None:
    one, other = (hide_functions(SCHEMA, (), ("user",), key)["user"]("a") for key in (KEY, KEY[::-1]))
    assert one != other


def test_a_feature_that_is_left_out_is_missing() -> None:
    hide = hide_functions(SCHEMA, ("user", "price"), (), KEY)
    assert {name: function(7) for name, function in hide.items()} == {"user": None, "price": None}


@pytest.mark.parametrize("name", ["price", "hour"])
def test_only_ids_with_a_vocabulary_are_hashed(name: str) -> None:
    with pytest.raises(PrivacyError, match=f"feature '{name}' cannot be hashed"):
        hide_functions(SCHEMA, (), (name,), KEY)


@pytest.mark.parametrize("given", [(("other",), ()), ((), ("other",))])
def test_an_unknown_feature_is_named(given: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    with pytest.raises(PrivacyError, match="the schema has no feature 'other'"):
        hide_functions(SCHEMA, *given, KEY)


def test_the_key_of_a_log_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    key = load_key(tmp_path)
    assert len(key) == KEY_BYTES
    assert load_key(tmp_path) == key
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o77 == 0
    (tmp_path / KEY_FILE).write_bytes(key[1:])
    with pytest.raises(PrivacyError, match="has less than 32 bytes"):
        load_key(tmp_path)
    with pytest.raises(PrivacyError, match="No such file"):
        load_key(tmp_path / "absent")
