from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyrec.models.schema.batch import F32, I64
from polyrec.models.tiers.tier_settings import ReaderKind
from polyrec.models.training.tiers.row_file import RowFile

KINDS: tuple[ReaderKind | None, ...] = ("threads", None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "squares"), [(1, 1), (16, 1), (64, 3), (1500, 2)])
@pytest.mark.parametrize("buffer_bytes", [1, 2**20])
def test_records_come_back(
    kind: ReaderKind, width: int, squares: int, buffer_bytes: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(width)
    rows = 3000 if width < 1000 else 100
    values = random.normal(size=(rows, width)).astype(np.float32)
    file = RowFile(tmp_path / "rows", rows, width, squares, buffer_bytes, kind)
    file.create(np.array_split(values, 7))
    expected = np.zeros((rows, file.columns), np.float32)
    expected[:, :width] = values
    for share in (1.0, 0.5, 0.01, 0.2):
        chosen = np.flatnonzero(random.random(rows) < share)
        new = random.normal(size=(chosen.size, file.columns)).astype(np.float32)
        old: list[tuple[I64, F32]] = []
        file.write(chosen, new, lambda r, records, old=old: old.append((r, records)))  # type: ignore[misc]
        if chosen.size:
            np.testing.assert_array_equal(np.concatenate([r for r, _ in old]), chosen)
            np.testing.assert_array_equal(np.concatenate([records for _, records in old]), expected[chosen])
        expected[chosen] = new
        some = np.flatnonzero(random.random(rows) < share)
        np.testing.assert_array_equal(file.read(some), expected[some])
    file.sync()
    file.close()
    file.open()
    np.testing.assert_array_equal(file.read(np.arange(rows)), expected)
    file.close()


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    RowFile(tmp_path / "rows", 5000, 16, 1).create([np.zeros((5000, 16), np.float32)])
    with pytest.raises(OSError, match="bytes instead of"):
        RowFile(tmp_path / "rows", 5000, 64, 1).open()
