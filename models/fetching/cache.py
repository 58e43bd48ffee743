"""Fetches bundles by URL into a local folder, each version once and atomically.

    manifest.json of the URL      read first; its checksum names the version
    DIR/<name>/                   if it exists, it is loaded instead of fetched
    DIR/.<name>.partial/          fetched file by file, at most the manifest's bytes, checksums compared
    DIR/<name>/                   the partial folder, renamed when it is complete

Several processes can share a folder. A process locks (flock) the folder that it works on. The lock ends with
the process, so the next fetch recognizes and removes the remains of a killed process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.bundle.manifest import MANIFEST, NUMBERS, FileDigest, read_manifest
from polyrec.models.errors import BundleError
from polyrec.models.fetching.store import FetchError, FileMissing, pieces, read
from polyrec.models.fetching.url import ModelUrl
from polyrec.models.files import MAX_SERVED_BYTES

NAME = "[0-9a-f]{32}"
INSIDE = "bundle"
"""Folder of the bundle among the artifacts of an MLflow run or model."""
ATTEMPTS = 3
"""Maximum fetches of a bundle that changes while it is fetched."""


class Mismatch(FetchError):
    """Raised when a file does not match its manifest: damaged, or of another version."""


class ModelCache:
    """Keeps fetched bundles in a folder of at most `max_bytes`; removes the least recently loaded first."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def load(self, url: ModelUrl) -> Bundle:
        """Loads the bundle at a URL, fetching it if it is not in the folder. Raises FetchError or
        BundleError.
        """
        for left in reversed(range(ATTEMPTS)):
            where, content = find_manifest(url)
            folder = self._folder / _name(content)
            bundle = self._load(where, folder)
            if bundle is None:
                try:
                    self._fetch(where, content, folder)
                except (Mismatch, FileMissing) as e:
                    if not left or find_manifest(url)[1] == content:
                        raise FetchError(f"{e}; it is damaged, or was changed while it was read") from None
                    continue
                except OSError as e:
                    raise FetchError(f"cannot write to the model cache '{self._folder}': {e}") from None
                bundle = self._load(where, folder)
            if bundle is not None:
                return bundle
        raise FetchError(f"bundle '{url}' was removed from the model cache repeatedly; is it too small?")

    def _load(self, where: ModelUrl, folder: Path) -> Bundle | None:
        """Loads a version from the folder; None if it is absent, or damaged, in which case it is removed."""
        with _locked(folder, fcntl.LOCK_SH) as there:
            if not there:
                return None
            try:
                bundle = load_bundle(folder)
            except BundleError as e:
                if _intact(folder):
                    raise BundleError(f"'{where}', fetched: {e}") from None
            else:
                with suppress(OSError):  # a folder that this process may not write
                    os.utime(folder)
                return bundle
        self._remove(folder, fcntl.LOCK_EX)
        return None

    def _fetch(self, where: ModelUrl, content: bytes, target: Path) -> None:
        """Fetches a version, unless another process has. Raises FetchError, BundleError or OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = target.with_name(f".{target.name}.partial")
        partial.mkdir(exist_ok=True)
        with _locked(partial, fcntl.LOCK_EX) as locked, ExitStack() as on_failure:
            if not locked:
                return
            on_failure.callback(shutil.rmtree, partial, ignore_errors=True)
            if target.exists():
                return
            for left in partial.iterdir():
                left.unlink()
            (partial / MANIFEST).write_bytes(content)
            files = read_manifest(str(where), partial / MANIFEST).files
            self._make_room(len(content) + sum(file.bytes for file in files.values()))
            for name in NUMBERS:
                _copy(where.child(name), partial / name, files[name])
            partial.rename(target)
            on_failure.pop_all()

    def _make_room(self, needed: int) -> None:
        """Removes the remains of killed processes, then old versions. Raises FetchError."""
        versions: list[tuple[float, int, Path]] = []
        for folder in self._folder.iterdir():
            if re.fullmatch(rf"\.{NAME}\.\w+", folder.name):
                self._remove(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            elif re.fullmatch(NAME, folder.name):
                with suppress(FileNotFoundError):  # another process removes it
                    size = sum(file.stat().st_size for file in folder.iterdir())
                    versions.append((folder.stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in versions)
        for _, size, folder in sorted(versions):
            over = total + needed > self._max_bytes
            if over and self._remove(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                total -= size
        if total + needed > self._max_bytes:
            allowed = f"--model-cache-bytes {self._max_bytes}"
            raise FetchError(f"a bundle has {needed} bytes, for which the model cache has no room: {allowed}")
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise FetchError(f"a bundle has {needed} bytes; the disk of the model cache has {free} free")

    def _remove(self, folder: Path, how: int) -> bool:
        """Removes a folder unless a process works on it; returns whether it is gone. how: flock operation."""
        try:
            with _locked(folder, how) as there:
                if there:
                    gone = self._folder / f".{folder.name.strip('.')[:32]}.gone{secrets.token_hex(4)}"
                    folder.rename(gone)
                    shutil.rmtree(gone, ignore_errors=True)
        except BlockingIOError:
            return False
        return True


def find_manifest(url: ModelUrl) -> tuple[ModelUrl, bytes]:
    """Reads the manifest of the bundle at a URL, or in its folder `bundle`; also returns the folder's URL.

    Raises FetchError; FileMissing if there is no bundle.
    """
    for folder in (url, url.child(INSIDE)):
        try:
            return folder, read(folder.child(MANIFEST), MAX_SERVED_BYTES)
        except FileMissing:
            pass
    raise FileMissing(f"no bundle at '{url}': there is no {MANIFEST}")


def _name(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:32]


def _copy(url: ModelUrl, target: Path, expected: FileDigest) -> None:
    """Copies a file; stops reading once it exceeds the expected bytes. Raises Mismatch or FetchError."""
    size, digest = 0, hashlib.sha256()
    with target.open("wb") as file:
        for piece in pieces(url):
            size += len(piece)
            if size > expected.bytes:
                break
            digest.update(piece)
            file.write(piece)
    if size != expected.bytes:
        raise Mismatch(f"'{url}' does not have the {expected.bytes} bytes in its manifest")
    if digest.hexdigest() != expected.sha256:
        raise Mismatch(f"'{url}' does not have the sha256 in its manifest")


def _intact(folder: Path) -> bool:
    """Returns whether a version's files are unchanged since they were fetched."""
    try:
        if _name((folder / MANIFEST).read_bytes()) != folder.name:
            return False
        for name, expected in read_manifest(folder).files.items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected.sha256:
                    return False
    except (OSError, BundleError):
        return False
    return True


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[bool]:
    """Locks a folder; yields whether it exists. Raises BlockingIOError with LOCK_NB."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        yield False
        return
    try:
        fcntl.flock(descriptor, how)
        # it may have been renamed or removed before the lock was acquired
        try:
            there = os.path.samestat(os.fstat(descriptor), folder.stat())
        except FileNotFoundError:
            there = False
        yield there
    finally:
        os.close(descriptor)
