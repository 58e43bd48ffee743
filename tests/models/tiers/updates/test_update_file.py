from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from safetensors.torch import save as torch_save

from polyrec.models.tiers.updates.update import TableUpdate, UpdateError
from polyrec.models.tiers.updates.update_file import encode_update, load_update, parse_update

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_updates_are_read_as_they_were_written(tmp_path: Path) -> None:
    given = {
        "by ids": TableUpdate(np.array([4, 1]), ROWS, retracted=("x",)),
        "by values": TableUpdate(np.empty(0, np.int64), ROWS, ("ä", None)),
        "integers": TableUpdate(np.empty(0, np.int64), ROWS, (7, -7)),
        "gone": TableUpdate.retraction(("a", "b")),
    }
    (tmp_path / "u").write_bytes(encode_update(given))
    for read in (load_update(tmp_path / "u"), parse_update(encode_update(given))):
        assert read.keys() == given.keys()
        for table, one in read.items():
            expected = given[table]
            assert one.ids.tolist() == expected.ids.tolist()
            assert one.values.tolist() == expected.values.tolist()
            assert (None if one.names is None else tuple(one.names)) == expected.names
            assert one.retracted == expected.retracted


def test_integer_values_may_be_an_array() -> None:
    update = parse_update(save({"t.values": np.array([5, 6]), "t.rows": ROWS}))
    assert update["t"].names == [5, 6]


@pytest.mark.parametrize(
    ("arrays", "offense"),
    [
        ({"t.rows": ROWS}, "wants t.ids or t.values, and t.rows"),
        ({"t.ids": np.array([1, 2])}, "wants t.ids or t.values"),
        (
            {"t.ids": np.array([1, 2]), "t.values": np.array([1, 2]), "t.rows": ROWS},
            "wants t.ids or t.values",
        ),
        ({"rows": ROWS}, "it has 'rows'"),
        ({"t.vectors": ROWS}, "it has 't.vectors'"),
        ({"t.ids": np.array([1.0, 2.0]), "t.rows": ROWS}, r"wants int64 ids \[n\]"),
        ({"t.ids": np.array([1, 2]), "t.rows": ROWS.astype(np.float64)}, r"wants float32 rows \[n, width\]"),
        ({"t.values": np.array([1]), "t.rows": ROWS}, "names 1 rows and gives 2"),
        ({"t.values": np.frombuffer(b"[1.5, 2]", np.uint8), "t.rows": ROWS}, "uint8 with a JSON list"),
        ({"t.values": np.frombuffer(b"[true, 2]", np.uint8), "t.rows": ROWS}, "uint8 with a JSON list"),
        ({"t.values": np.frombuffer(b"{", np.uint8), "t.rows": ROWS}, "uint8 with a JSON list"),
        ({"t.retract": np.frombuffer(b"[null]", np.uint8)}, "the missing row cannot be retracted"),
    ],
)
def test_arrays_that_are_no_update_are_reported(arrays: dict[str, np.ndarray], offense: str) -> None:
    with pytest.raises(UpdateError, match=offense):
        parse_update(save(arrays))


def test_an_invalid_update_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match="no file of updates"):
        load_update(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UpdateError, match="is not a file of updates"):
        load_update(tmp_path / "text")


def test_numbers_that_numpy_does_not_have_are_reported(tmp_path: Path) -> None:
    content = torch_save(
        {"t.ids": torch.zeros(1, dtype=torch.int64), "t.rows": torch.zeros(1, 2).to(torch.float8_e4m3fn)}
    )
    (tmp_path / "file").write_bytes(content)
    for read in (lambda: load_update(tmp_path / "file"), lambda: parse_update(content)):
        with pytest.raises(UpdateError, match="is not"):
            read()
