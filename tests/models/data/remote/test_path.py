from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data.guess.schema_guess import guess_schema
from polyrec.models.data.packed.packing import pack
from polyrec.models.data.reader import open_data
from polyrec.models.data.remote.path import RemotePath, data_path
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile

SCHEMA = load_schema("trivago")


@pytest.fixture(scope="module")
def folder(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Parquet files of the rows of `clicks`, plain, and one packed."""
    folder = tmp_path_factory.mktemp("remote")
    table = pq.read_table(clicks)
    cut = table["request_id"].to_pylist().index(120)
    (folder / "plain").mkdir()
    for name, part in (("a", table.slice(0, cut)), ("b", table.slice(cut))):
        pq.write_table(part, folder / "plain" / f"{name}.parquet")
    pack(open_data(clicks, SCHEMA), SCHEMA, folder / "packed")
    return folder


@pytest.fixture(scope="module")
def memory(folder: Path) -> Iterator[str]:
    """The files in fsspec's memory, by URL."""
    system = fsspec.filesystem("memory")
    system.put(str(folder), "/clicks", recursive=True)
    system.copy("/clicks/plain/a.parquet", "/clicks/plain/_temporary/a.parquet")  # unfinished: not read
    yield "memory://clicks"
    system.rm("/clicks", recursive=True)


class Ranges(SimpleHTTPRequestHandler):
    """Serves files, and parts of them; the standard library's sends whole files."""

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            super().do_GET()
            return
        content = Path(self.translate_path(self.path)).read_bytes()
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(content[first : last + 1])

    def send_response(self, code: int, message: str | None = None) -> None:
        super().send_response(code, message)
        self.send_header("Accept-Ranges", "bytes")

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture(scope="module")
def http(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def read(place: str | Path) -> pa.Table:
    return pa.Table.from_batches(open_data(place, SCHEMA).batches(SCHEMA.columns, 1000)).combine_chunks()


@pytest.mark.parametrize(
    "name", ["plain", "packed", "plain/*.parquet", "plain/[ab].parquet", "plain/a.parquet"]
)
def test_a_url_gives_the_rows_of_the_files(folder: Path, memory: str, name: str) -> None:
    assert read(f"{memory}/{name}").equals(read(folder / name))


def test_files_are_read_over_http_and_through_a_cache(folder: Path, http: str, tmp_path: Path) -> None:
    expected = read(folder / "plain/a.parquet")
    assert read(f"{http}/plain/a.parquet").equals(expected)
    assert read(f"simplecache::{http}/plain/a.parquet").equals(expected)


def test_a_model_is_trained_from_a_url_and_its_data_identified(
    memory: str, folder: Path, tmp_path: Path
) -> None:
    training = RecipeFile(recipe=Recipe(epochs=1, batch_rows=512))
    made = [
        Learner(open_data(place, SCHEMA), SCHEMA, training, baselines=False, window_rows=1000).learn(
            tmp_path / str(i)
        )
        for i, place in enumerate((folder / "plain", f"{memory}/plain"))
    ]
    assert made[0].manifest.version == made[1].manifest.version
    data = made[1].manifest.training["data"]
    assert data == {"fingerprint": open_data(f"{memory}/plain", SCHEMA).fingerprint(), "path": "plain"}
    assert data["fingerprint"] != open_data(f"{memory}/packed", SCHEMA).fingerprint()


def test_another_version_of_a_file_has_another_fingerprint(folder: Path) -> None:
    system = fsspec.filesystem("memory")
    prints = []
    for name in ("a", "b"):
        system.put(str(folder / f"plain/{name}.parquet"), "/versions/x.parquet")
        prints.append(open_data("memory://versions/x.parquet", SCHEMA).fingerprint())
    system.rm("/versions", recursive=True)
    assert prints[0] != prints[1]


def test_a_schema_is_guessed_from_a_url(memory: str) -> None:
    assert guess_schema(f"{memory}/plain/a.parquet").schema.label.column == "clicked"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://clicks/none.parquet", "no data at 'memory://"),
        ("memory://clicks/none-*.parquet", "no *.parquet file at"),
        ("nonsense://x/y", "cannot read nonsense://...: Protocol not known: nonsense"),
        ("http://127.0.0.1:1/x/*.parquet", "cannot read 'http://127.0.0.1:1/"),
    ],
)
def test_an_unreadable_url_is_reported_in_one_line(url: str, reason: str, memory: str) -> None:
    with pytest.raises(DataError, match=re.escape(reason)) as error:
        open_data(url, SCHEMA)
    assert "\n" not in str(error.value)


def test_secrets_of_a_url_are_not_written_out() -> None:
    place = data_path("http://me:secret@host/clicks/a.parquet?signature=secret")
    assert isinstance(place, RemotePath)
    assert str(place) == "http://host/clicks/a.parquet"
    assert (place.name, place.stem) == ("a.parquet", "a")
    assert "secret" not in repr(place)


def test_local_paths_stay_local(tmp_path: Path) -> None:
    assert data_path("clicks/*.parquet") == Path("clicks/*.parquet")
    assert data_path(tmp_path) == tmp_path
