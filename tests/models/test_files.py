from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyrec.models.errors import DataError, PolyrecError
from polyrec.models.files import (
    Strict,
    atomic_path,
    create_whole,
    read_json,
    read_regular,
    read_yaml,
    require_target_file,
    validate_as,
    write_text,
)

Read = Callable[[Path, str, type[PolyrecError]], dict[str, Any]]


class Small(Strict):
    rows: int
    names: tuple[str, ...] = ()


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_written_updates_are_read(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "small"
    file.write_text('{"rows": 3, "names": ["ä"]}', encoding="utf-8")
    small = validate_as(Small, read(file, "small", DataError), "small", DataError)
    assert small == Small(rows=3, names=("ä",))


@pytest.mark.parametrize(
    ("read", "content", "says"),
    [
        (read_json, b"{", "thing 'x' is not JSON: "),
        (read_json, b"[1]", "thing 'x': the file must be an object, not list"),
        (read_json, b"[" * 100_000, "thing 'x' is not JSON: "),
        (read_json, b"\xff", "thing 'x' is not JSON: it is not text in UTF-8"),
        (read_yaml, b"a: [", "thing 'x' is not YAML: "),
        (read_yaml, b"", "thing 'x': the file must be a mapping, not NoneType"),
        (read_yaml, b"\xff", "thing 'x' is not YAML: it is not text in UTF-8"),
        (read_yaml, b"a: {b: 1}\nb: 2\nb: 2", "thing 'x' is not YAML: line 3: the key 'b' is written twice"),
        (read_yaml, b"a: &a [*a]", "cannot read thing 'x': an alias stands inside what it names"),
        (read_yaml, b"[" * 10_000, "cannot read thing 'x': it is nested more than 32 deep"),
        (read_yaml, b"a: [" + b"1," * 20_000 + b"]", "cannot read thing 'x': it has more than 20000 values"),
        (read_yaml, b"a: " + b"1" * 2**20, "cannot read thing 'x': it has more than 1048576 "),
    ],
)
def test_an_irregular_file_is_reported_in_one_line(
    read: Read, content: bytes, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "small"
    file.write_bytes(content)
    with pytest.raises(DataError) as error:
        read(file, "thing 'x'", DataError)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_a_missing_file_raises_file_not_found(read: Read, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent", "thing", DataError)
    with pytest.raises(DataError, match="cannot read thing"):
        read(tmp_path, "thing", DataError)


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_pipes_and_devices_are_not_read(read: Read, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for file in (pipe, link, Path("/dev/zero"), tmp_path):
        with pytest.raises(DataError, match=r"^cannot read thing: it is not a regular file$"):
            read(file, "thing", DataError)


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(2**21))
    assert read_regular(file, 2**21) == bytes(2**21)
    with pytest.raises(OSError, match="it has more than 2097151 bytes"):
        read_regular(file, 2**21 - 1)
    os.truncate(file, 2**40)  # takes no disk, and would take all memory
    with pytest.raises(DataError, match=r"^cannot read thing: it has more than \d+ bytes$"):
        read_json(file, "thing", DataError)


def test_the_first_offense_is_named() -> None:
    with pytest.raises(DataError, match=r"^thing: rows: Field required$"):
        validate_as(Small, {}, "thing", DataError)
    with pytest.raises(DataError, match=r"^thing: more: unknown key; known: rows, names$"):
        validate_as(Small, {"rows": 1, "more": 2}, "thing", DataError)


def test_files_and_folders_are_written_atomically(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    for text in ("old", "new"):
        with atomic_path(file) as partial:
            partial.write_text(text)
        with atomic_path(folder) as partial:
            partial.mkdir()
            (partial / text).touch()
    assert file.read_text() == "new"
    assert [p.name for p in folder.iterdir()] == ["new"]
    for target in (file, folder):
        with pytest.raises(OSError, match="full"):
            _half(target)
    assert file.read_text() == "new"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}


def test_a_file_takes_no_folders_place(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "bundle").touch()
    with pytest.raises(IsADirectoryError), atomic_path(folder) as partial:
        partial.write_text("a calibration")
    assert (folder / "bundle").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def _half(target: Path) -> None:
    with atomic_path(target) as partial:
        if target.is_dir():
            partial.mkdir()
        else:
            partial.write_text("half")
        raise OSError("the disk is full")


def test_a_file_is_created_for_its_owner_and_one_that_exists_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for content in (b"first", b"second"):
        create_whole(file, content)
        assert file.read_bytes() == b"first"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_appears_under_its_name_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def recorded(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    create_whole(tmp_path / "key", b"secret")
    assert tmp_path.stat().st_ino in synced
    write_text(tmp_path / "plan.json", "{}")
    with atomic_path(tmp_path / "bundle") as partial:
        (partial / "more").mkdir(parents=True)
        (partial / "more" / "rows").write_bytes(b"rows")
    assert {path.stat().st_ino for path in tmp_path.rglob("*")} <= synced


def test_text_is_written_and_replaced_and_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    write_text(file, "é")
    assert file.read_text(encoding="utf-8") == "é"
    link.symlink_to(file)
    write_text(link, "two")
    assert link.is_symlink()
    assert file.read_text() == "two"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["file", "link"]


def test_a_full_disk_keeps_the_old_text(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_text(file, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_text(file, "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_text() == "old"
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_unwritable_files_are_reported_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, says in (
        (tmp_path, "is a folder; name a file"),
        (tmp_path / "file" / "x", f"in '{tmp_path / 'file'}': File exists"),
        (Path("/proc/none/x"), "in '/proc/none': No such file or directory"),
        (Path("/proc/x"), "cannot write --out '/proc/x' in '/proc': No such file"),
    ):
        with pytest.raises(PolyrecError, match=says):
            require_target_file(path, PolyrecError)
    for path in (tmp_path / "file", tmp_path / "new" / "x", Path("/dev/null")):
        require_target_file(path, PolyrecError)
    assert {file.name for file in tmp_path.rglob("*")} == {"file", "new"}  # nothing stays


def test_a_device_or_pipe_is_written_as_it_is() -> None:
    reader, writer = os.pipe()
    write_text(Path(f"/dev/fd/{writer}"), "text")
    os.close(writer)
    with os.fdopen(reader) as told:
        assert told.read() == "text"


def test_a_pipe_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match="is a pipe or a device"), atomic_path(pipe) as partial:
        partial.touch()
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def merge_bomb(levels: int) -> str:
    """Each level is the one before, merged ten times: 10**levels values."""
    lines = ["a0: &a0 {k: 1}"]
    for i in range(levels):
        lines.append(f"a{i + 1}: &a{i + 1} {{<<: [{','.join([f'*a{i}'] * 10)}]}}")
    return "\n".join(lines)


def test_aliases_and_merge_keys_count_as_their_expansion(tmp_path: Path) -> None:
    """407 bytes took nine seconds; each further line takes ten times as long."""
    file = tmp_path / "bomb.yaml"
    for text in (merge_bomb(5), merge_bomb(5).replace("<<: ", "x: ")):
        file.write_text(text)
        with pytest.raises(DataError, match="it has more than 20000 values, aliases followed"):
            read_yaml(file, "bomb", DataError)
    file.write_text(merge_bomb(2) + "\nb: [&x {y: 2}, *x]")
    assert read_yaml(file, "small", DataError)["b"] == [{"y": 2}, {"y": 2}]


def test_a_key_may_replace_one_that_is_merged(tmp_path: Path) -> None:
    file = tmp_path / "merged.yaml"
    file.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {<<: *a, x: 4}")
    assert read_yaml(file, "merged", DataError)["b"] == {"x": 3, "y": 2}
