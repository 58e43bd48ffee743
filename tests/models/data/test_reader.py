from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from polyrec.models.data.criteo import CriteoReader
from polyrec.models.data.parquet import ParquetReader
from polyrec.models.data.reader import open_data
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema, load_schema

Write = Callable[[Sequence[dict[str, Any]]], Path]


def test_the_content_decides_the_format(small: Schema, write: Write, tmp_path: Path) -> None:
    path = write([{"request": 1, "clicked": 1}])
    assert isinstance(open_data(path, small), ParquetReader)
    copy = tmp_path / "rows.tsv"
    copy.write_bytes(path.read_bytes())
    assert isinstance(open_data(copy, small), ParquetReader)
    assert isinstance(open_data(path.parent, small), ParquetReader)
    lines = tmp_path / "lines.tsv"
    lines.write_text("\t" * 39)
    assert isinstance(open_data(lines, load_schema("criteo")), CriteoReader)


def test_files_that_are_no_data_are_rejected(small: Schema, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data file"):
        open_data(tmp_path / "nothing.parquet", small)
    with pytest.raises(DataError, match=r"no \*.parquet file in"):
        open_data(tmp_path, small)
    (tmp_path / "empty.tsv").touch()
    with pytest.raises(DataError, match="is empty"):
        open_data(tmp_path / "empty.tsv", small)
    (tmp_path / "rows.csv").write_text("a,b")
    with pytest.raises(DataError, match="neither Parquet nor a Criteo file"):
        open_data(tmp_path / "rows.csv", small)


def test_a_fingerprint_is_of_the_bytes(small: Schema, write: Write, tmp_path: Path) -> None:
    path = write([{"request": 1, "clicked": 1}])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert open_data(path, small).fingerprint() == digest
    (tmp_path / "elsewhere.parquet").write_bytes(path.read_bytes())
    assert open_data(tmp_path / "elsewhere.parquet", small).fingerprint() == digest


def test_the_fingerprint_of_a_folder_knows_names_and_contents(
    small: Schema, write: Write, tmp_path: Path
) -> None:
    content = write([{"request": 1, "clicked": 1}]).read_bytes()
    (tmp_path / "a.parquet").write_bytes(content)
    one = open_data(tmp_path, small).fingerprint()
    (tmp_path / "notes.txt").touch()
    assert open_data(tmp_path, small).fingerprint() == one
    (tmp_path / "b.parquet").write_bytes(content)
    two = open_data(tmp_path, small).fingerprint()
    (tmp_path / "b.parquet").rename(tmp_path / "c.parquet")
    assert len({one, two, open_data(tmp_path, small).fingerprint()}) == 3
