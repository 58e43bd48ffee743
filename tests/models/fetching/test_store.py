from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import fsspec
import pytest

from polyrec.models.fetching import store
from polyrec.models.fetching.store import MIN_BYTES_PER_S, TIMEOUT_S, FetchError, FileMissing, paced, read
from polyrec.models.fetching.url import ModelUrl
from tests.models.fetching.web import Files, serving

CONTENT = bytes(range(256)) * 40_000
"""More than a piece."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x.bin").write_bytes(CONTENT)
    return tmp_path


@pytest.fixture(params=["http", "file", "memory"])
def root(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "http":
        with serving(folder) as (url, _):
            yield url
    elif request.param == "file":
        yield f"file://{folder}"
    else:
        system = fsspec.filesystem("memory")
        system.put(str(folder / "x.bin"), "/stored/x.bin")
        yield "memory://stored"
        system.rm("/stored", recursive=True)


def test_a_file_is_read_by_url(root: str) -> None:
    url = ModelUrl(f"{root}/x.bin")
    assert read(url, len(CONTENT)) == CONTENT
    with pytest.raises(FetchError, match="more than 1000 bytes"):
        read(url, 1000)


def test_a_missing_file_has_an_error_of_its_own(root: str) -> None:
    with pytest.raises(FileMissing, match=r"there is no '.*/none'"):
        read(ModelUrl(f"{root}/none"), 1000)


def broken(files: Files) -> bool:
    """Answers /STATUS with it, /short with half of what it announces, and /away with a redirect."""
    name = files.path.removeprefix("/")
    if name == "short":
        files.send_response(200)
        files.send_header("Content-Length", "1000")
        files.end_headers()
        files.wfile.write(bytes(500))
        files.close_connection = True
    else:
        files.send_response(302 if name.startswith("away") else int(name))
        files.send_header("Location", "file:///etc/passwd" if name == "away" else "/x.bin")
        files.send_header("Content-Length", "0")
        files.end_headers()
    return True


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("403", "status 403"),
        ("500", "status 500"),
        ("204", "status 204"),
        ("short", "peer closed connection"),
        ("away", "redirects, which is not supported"),
        ("away-here", "redirects, which is not supported"),
    ],
)
def test_answers_that_are_not_whole_files_are_errors(folder: Path, name: str, reason: str) -> None:
    with serving(folder, broken) as (root, asked), pytest.raises(FetchError, match=reason):
        read(ModelUrl(f"{root}/{name}"), 10_000)
    assert asked == [f"/{name}"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense://x/y", "cannot read 'nonsense://x/y': Protocol not known"),
        ("http://127.0.0.1:1/x", "cannot read 'http://127.0.0.1:1/x': "),
        ("http://127.0.0.1:x/x", "cannot read 'http://127.0.0.1:x/x': "),
    ],
)
def test_an_unreadable_url_is_reported_in_one_line(url: str, reason: str) -> None:
    with pytest.raises(FetchError) as error:
        read(ModelUrl(url), 1000)
    assert str(error.value).startswith(reason)
    assert "\n" not in str(error.value)


def compressed(files: Files) -> bool:
    """Answers with a compressed body that was not requested."""
    content = gzip.compress(bytes(64 * 2**20))
    files.send_response(200)
    files.send_header("Content-Encoding", "gzip")
    files.send_header("Content-Length", str(len(content)))
    files.end_headers()
    with suppress(OSError):
        files.wfile.write(content)
    return True


def test_compressed_files_are_not_read(folder: Path) -> None:
    with serving(folder, compressed) as (root, _), pytest.raises(FetchError, match="is sent compressed"):
        read(ModelUrl(f"{root}/x.bin"), 1000)


def test_another_version_of_a_file_is_read_anew(folder: Path) -> None:
    system = fsspec.filesystem("memory")
    for content in (b"first", b"second"):
        system.pipe("/changing/x", content)
        system.ls("/changing")
        assert read(ModelUrl("memory://changing/x"), 100) == content
    system.rm("/changing", recursive=True)


def arriving(seconds: list[float], piece: bytes) -> tuple[Iterator[bytes], Callable[[], float]]:
    """Pieces that arrive these seconds after the beginning, and the clock by which they do."""
    now_s = [0.0]

    def content() -> Iterator[bytes]:
        for at_s in seconds:
            now_s[0] = at_s
            yield piece

    return content(), lambda: now_s[0]


def test_a_file_that_dribbles_is_given_up() -> None:
    """Each byte came within the time limit of a byte, and no other plan was opened meanwhile."""
    content, clock = arriving([s * TIMEOUT_S / 2 for s in range(1, 100)], b"x")
    with pytest.raises(FetchError, match="'it' arrives at less than 65536 bytes a second"):
        list(paced(content, "'it'", clock))
    # as long as a large file keeps its pace, it may take any time
    content, clock = arriving(
        [s * TIMEOUT_S / 2 for s in range(1, 100)], bytes(int(TIMEOUT_S / 2 * MIN_BYTES_PER_S))
    )
    assert len(list(paced(content, "'it'", clock))) == 99


DRIBBLED = {
    "head": b"HTTP/1.1 200 OK\r\nX-Long: ",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
}


@pytest.mark.parametrize("part", DRIBBLED)
def test_an_answer_that_dribbles_is_given_up_in_every_part(
    folder: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pace of heads was not measured, as no piece comes of them."""
    monkeypatch.setattr(store, "TIMEOUT_S", 1.0)
    slowly, whole = threading.Event(), []

    def dribble(files: Files) -> bool:
        with suppress(OSError):
            files.wfile.write(DRIBBLED[part])
            for _ in range(100):
                files.wfile.write(b"x")
                slowly.wait(0.1)
            whole.append(part)
        files.close_connection = True
        return True

    with (
        serving(folder, dribble) as (root, _),
        pytest.raises(FetchError, match=f"/{part}' arrives at less than 65536 bytes a second"),
    ):
        read(ModelUrl(f"{root}/{part}"), 10_000)
    assert not whole
