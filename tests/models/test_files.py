from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.errors import DataError, PolyrecError
from models.files import Strict, read_json, read_yaml, validated, whole

Read = Callable[[Path, str, type[PolyrecError]], dict[str, Any]]


class Small(Strict):
    rows: int
    names: tuple[str, ...] = ()


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_what_was_written_is_read(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "small"
    file.write_text('{"rows": 3, "names": ["ä"]}', encoding="utf-8")
    small = validated(Small, read(file, "small", DataError), "small", DataError)
    assert small == Small(rows=3, names=("ä",))


@pytest.mark.parametrize(
    ("read", "content", "says"),
    [
        (read_json, b"{", "thing 'x' is not JSON: "),
        (read_json, b"[1]", "thing 'x': the file must be an object, not list"),
        (read_json, b"[" * 100_000, "thing 'x' is not JSON: "),
        (read_json, b"\xff", "cannot read thing 'x': "),
        (read_yaml, b"a: [", "thing 'x' is not YAML: "),
        (read_yaml, b"", "thing 'x': the file must be a mapping, not NoneType"),
        (read_yaml, b"[" * 10_000, "thing 'x' is not YAML: "),
        (read_yaml, b"\xff", "cannot read thing 'x': "),
    ],
)
def test_a_file_that_is_none_is_told_in_one_line(
    read: Read, content: bytes, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "small"
    file.write_bytes(content)
    with pytest.raises(DataError) as error:
        read(file, "thing 'x'", DataError)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_what_to_say_of_an_absent_file_is_the_callers(read: Read, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent", "thing", DataError)
    with pytest.raises(DataError, match="cannot read thing"):
        read(tmp_path, "thing", DataError)


def test_the_first_offence_is_named() -> None:
    with pytest.raises(DataError, match=r"^thing: rows: Field required$"):
        validated(Small, {}, "thing", DataError)
    with pytest.raises(DataError, match=r"^thing: more: Extra inputs are not permitted$"):
        validated(Small, {"rows": 1, "more": 2}, "thing", DataError)


def test_a_file_or_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    for text in ("old", "new"):
        with whole(file) as partial:
            partial.write_text(text)
        with whole(folder) as partial:
            partial.mkdir()
            (partial / text).touch()
    assert file.read_text() == "new"
    assert [p.name for p in folder.iterdir()] == ["new"]
    for target in (file, folder):
        with pytest.raises(OSError, match="full"):
            _half(target)
    assert file.read_text() == "new"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}


def _half(target: Path) -> None:
    with whole(target) as partial:
        if target.is_dir():
            partial.mkdir()
        else:
            partial.write_text("half")
        raise OSError("the disk is full")
