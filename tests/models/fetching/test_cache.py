from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import fsspec
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.manifest import EMBEDDINGS, MANIFEST, NET, VOCABULARY
from polyrec.models.errors import BundleError
from polyrec.models.fetching.cache import ATTEMPTS, ModelCache
from polyrec.models.fetching.store import FetchError, FileMissing
from polyrec.models.fetching.url import ModelUrl
from tests.models.fetching.web import Files, serving

PLENTY = 2**40
FETCH = """
import sys
from pathlib import Path
from polyrec.models.fetching.cache import ModelCache
from polyrec.models.fetching.url import ModelUrl
ModelCache(Path(sys.argv[1]), 2**40).load(ModelUrl(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def others(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Bundles with other weights."""
    made = []
    for i in range(ATTEMPTS + 1):
        model = deepcopy(bundle.model())
        with torch.no_grad():
            for parameter in model.net.parameters():
                parameter.mul_(1 - 0.1 * i)
        out = tmp_path_factory.mktemp("others") / "table"
        made.append(write_bundle(out, model, bundle.manifest.representation, bundle.encoder, {}, {}).path)
    return made


@pytest.fixture
def store(bundle_dir: Path, tmp_path: Path) -> Path:
    """A folder to be served, with a bundle `v1` in it that may be changed."""
    shutil.copytree(bundle_dir, tmp_path / "store" / "v1")
    return tmp_path / "store"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The cache's."""
    return tmp_path / "cache"


def put(source: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(source, target)


def versions(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("kind", ["http", "file", "memory"])
def test_a_bundle_is_fetched_once_and_is_the_one_at_the_url(
    kind: str, store: Path, folder: Path, bundle: Bundle
) -> None:
    with serving(store) as (root, _):
        if kind == "memory":
            fsspec.filesystem("memory").put(str(store), "/store", recursive=True)
        url = ModelUrl({"http": root, "file": f"file://{store}", "memory": "memory://store"}[kind] + "/v1")
        fetched = ModelCache(folder, PLENTY).load(url)
        again = ModelCache(folder, PLENTY).load(url)
    if kind == "memory":
        fsspec.filesystem("memory").rm("/store", recursive=True)
    assert fetched.manifest == again.manifest == bundle.manifest
    assert fetched.path == again.path
    assert versions(folder) == [fetched.path.name]
    for name in (MANIFEST, EMBEDDINGS, NET, VOCABULARY):
        assert (fetched.path / name).read_bytes() == (bundle.path / name).read_bytes()


def test_only_the_manifest_of_a_cached_version_is_fetched(store: Path, folder: Path) -> None:
    shutil.copytree(store / "v1", store / "v2")
    with serving(store) as (root, asked):
        for name in ("v1", "v1", "v2"):
            ModelCache(folder, PLENTY).load(ModelUrl(f"{root}/{name}"))
    numbers = [f"/v1/{EMBEDDINGS}", f"/v1/{NET}", f"/v1/{VOCABULARY}"]
    assert asked == [f"/v1/{MANIFEST}", *numbers, f"/v1/{MANIFEST}", f"/v2/{MANIFEST}"]


def test_a_bundle_among_the_artifacts_of_mlflow_is_found(store: Path, folder: Path) -> None:
    (store / "run" / "artifacts").mkdir(parents=True)
    (store / "run" / "artifacts" / "MLmodel").write_text("flavors: {}\n")
    (store / "v1").rename(store / "run" / "artifacts" / "bundle")
    with serving(store) as (root, _):
        assert ModelCache(folder, PLENTY).load(ModelUrl(f"{root}/run/artifacts")).path.parent == folder


def test_a_url_without_a_bundle_is_reported(store: Path, folder: Path) -> None:
    with serving(store) as (root, _), pytest.raises(FileMissing, match=f"no bundle at '{root}/v2'"):
        ModelCache(folder, PLENTY).load(ModelUrl(f"{root}/v2"))
    assert versions(folder) == []


def corrupt(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def lengthen(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(bytes(10))


@pytest.mark.parametrize("name", [EMBEDDINGS, NET, VOCABULARY])
@pytest.mark.parametrize("damage", [corrupt, cut, lengthen, Path.unlink])
def test_a_damaged_file_is_reported_and_leaves_nothing(
    store: Path, folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(store / "v1" / name)
    with serving(store) as (root, _), pytest.raises(FetchError, match=name):
        ModelCache(folder, PLENTY).load(ModelUrl(f"{root}/v1"))
    assert versions(folder) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b"{" * 10_000, b" " * 5_000_000])
def test_an_invalid_manifest_is_reported_and_leaves_nothing(
    store: Path, folder: Path, content: bytes
) -> None:
    (store / "v1" / MANIFEST).write_bytes(content)
    with serving(store) as (root, _), pytest.raises((BundleError, FetchError), match=root):
        ModelCache(folder, PLENTY).load(ModelUrl(f"{root}/v1"))
    assert versions(folder) == []


def test_no_more_is_read_than_the_manifest_says(store: Path, folder: Path) -> None:
    sent = []

    def endless(files: Files) -> bool:
        if not files.path.endswith(NET):
            return False
        files.send_response(200)
        files.end_headers()
        try:
            while True:
                files.wfile.write(bytes(2**20))
                sent.append(2**20)
        except OSError:
            return True

    with serving(store, endless) as (root, _), pytest.raises(FetchError, match=NET):
        ModelCache(folder, PLENTY).load(ModelUrl(f"{root}/v1"))
    assert sum(sent) < 2**28
    assert versions(folder) == []


def test_a_bundle_that_is_replaced_while_it_is_fetched_is_fetched_anew(
    store: Path, folder: Path, others: list[Path]
) -> None:
    left = others[:ATTEMPTS]

    def replace(files: Files) -> bool:
        if files.path.endswith(NET) and len(left) > 1:
            put(left.pop(), store / "v1")
        return False

    with serving(store, replace) as (root, _):
        fetched = ModelCache(folder, PLENTY).load(ModelUrl(f"{root}/v1"))
    # between every manifest and its net another version came, for all but the last attempt
    assert fetched.manifest == load_bundle(others[1]).manifest
    assert versions(folder) == [fetched.path.name]


def test_a_bundle_that_is_always_replaced_is_given_up(store: Path, folder: Path, others: list[Path]) -> None:
    left = list(others)

    def replace(files: Files) -> bool:
        if files.path.endswith(NET):
            put(left.pop(), store / "v1")
        return False

    with serving(store, replace) as (root, _), pytest.raises(FetchError, match="changed while it was read"):
        ModelCache(folder, PLENTY).load(ModelUrl(f"{root}/v1"))
    assert versions(folder) == []


def test_a_version_that_was_damaged_in_the_cache_is_fetched_again(store: Path, folder: Path) -> None:
    with serving(store) as (root, asked):
        url = ModelUrl(f"{root}/v1")
        fetched = ModelCache(folder, PLENTY).load(url)
        for name, damage in ((NET, corrupt), (EMBEDDINGS, Path.unlink), (MANIFEST, corrupt)):
            damage(fetched.path / name)
            assert ModelCache(folder, PLENTY).load(url).manifest == fetched.manifest
    assert asked.count(f"/v1/{NET}") == 4
    assert versions(folder) == [fetched.path.name]


def test_remains_of_a_killed_fetch_are_no_version_and_removed_by_the_next(store: Path, folder: Path) -> None:
    halfway, end = threading.Event(), threading.Event()

    def stall(files: Files) -> bool:
        if not files.path.endswith(EMBEDDINGS) or end.is_set():
            return False
        content = (store / "v1" / EMBEDDINGS).read_bytes()
        files.send_response(200)
        files.send_header("Content-Length", str(len(content)))
        files.end_headers()
        files.wfile.write(content[: len(content) // 2])
        halfway.set()
        end.wait()
        return True

    with serving(store, stall) as (root, _):
        fetching = subprocess.Popen([sys.executable, "-c", FETCH, str(folder), f"{root}/v1"])
        try:
            assert halfway.wait(timeout=120)
        finally:
            fetching.send_signal(signal.SIGKILL)
            fetching.wait()
            end.set()
        (left,) = versions(folder)
        assert left.startswith(".")
        shutil.copytree(folder / left, folder / f".{'0' * 32}.partial")  # one of another version
        fetched = ModelCache(folder, PLENTY).load(ModelUrl(f"{root}/v1"))
    assert versions(folder) == [fetched.path.name]


def test_processes_that_want_the_same_version_fetch_it_once(store: Path, folder: Path) -> None:
    with serving(store) as (root, asked), ThreadPoolExecutor(6) as pool:
        url = ModelUrl(f"{root}/v1")
        loaded = list(pool.map(lambda _: ModelCache(folder, PLENTY).load(url), range(6)))
    assert {bundle.path for bundle in loaded} == {folder / versions(folder)[0]}
    assert [asked.count(f"/v1/{name}") for name in (MANIFEST, EMBEDDINGS, NET)] == [6, 1, 1]


def test_versions_that_were_not_loaded_for_long_make_room(
    store: Path, folder: Path, others: list[Path]
) -> None:
    def size(path: Path) -> int:
        return sum(file.stat().st_size for file in path.iterdir())

    room = 2 * max(map(size, others)) + 1000
    cache = ModelCache(folder, room)
    urls = [ModelUrl(f"file://{path}") for path in others]
    (folder / "mine").mkdir(parents=True)
    loaded = []
    for i, url in enumerate((urls[0], urls[1], urls[0], urls[2])):
        loaded.append(cache.load(url))
        os.utime(loaded[-1].path, (i, i))
    assert versions(folder) == sorted(["mine", loaded[0].path.name, loaded[3].path.name])
    loaded[1].model()  # its files are held
    with pytest.raises(FetchError, match="--model-cache-bytes 1000"):
        ModelCache(folder, 1000).load(urls[3])


def test_a_cache_that_cannot_be_written_is_reported(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="cannot write to the model cache"):
        ModelCache(tmp_path / "file" / "cache", PLENTY).load(ModelUrl(f"file://{store}/v1"))
