"""Reads files by URL, in pieces: http and https through httpx, all other schemes through fsspec.

Redirects are not followed, so that a model comes from the place that its URL names.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Self

from polyrec.models.errors import PolyrecError
from polyrec.models.fetching.url import SCHEME, ModelUrl

PIECE_BYTES = 4 * 2**20
TIMEOUT_S = 60.0
"""Longest wait for a connection, and for the next bytes of a file."""
MIN_BYTES_PER_S = 2**16
"""Least average rate of a file, beyond TIMEOUT_S: while a store dribbles, no other plan is opened.

Not a setting: at this rate a model of a gigabyte takes 4.6 hours, so nobody needs less."""
WEB = ("http", "https")
ABSENT = (404, 410)


class FetchError(PolyrecError):
    """Raised when a model cannot be fetched: no such file, no connection, or content that its manifest
    contradicts.
    """


class FileMissing(FetchError):
    """Raised when there is no file at the URL."""


def read(url: ModelUrl, max_bytes: int) -> bytes:
    """Reads a whole file. Raises FetchError, also if it has more than `max_bytes`; FileMissing."""
    content = bytearray()
    for piece in pieces(url):
        content += piece
        if len(content) > max_bytes:
            raise FetchError(f"'{url}' has more than {max_bytes} bytes")
    return bytes(content)


def pieces(url: ModelUrl) -> Iterator[bytes]:
    """Reads a file from its beginning. Raises FetchError, also if it arrives too slowly; FileMissing."""
    return _read_url(url) if url.text.partition(SCHEME)[0] in WEB else paced(_fsspec(url), f"'{url}'")


class Pace:
    """The time that a file may take: TIMEOUT_S plus its bytes at MIN_BYTES_PER_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_s, self._size = clock(), 0

    def received(self, size: int) -> None:
        """Counts received bytes of the file."""
        self._size += size

    @property
    def left_s(self) -> float:
        """Seconds until more bytes must have arrived; negative if it is too slow."""
        return self._begun_s + TIMEOUT_S + self._size / MIN_BYTES_PER_S - self._clock()


def paced(
    content: Iterable[bytes], what: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[bytes]:
    """Yields pieces. Raises FetchError once they arrive too slowly (`Pace`)."""
    pace = Pace(clock)
    for piece in content:
        pace.received(len(piece))
        if pace.left_s < 0:
            raise FetchError(_too_slow(what))
        yield piece


def _too_slow(what: str) -> str:
    return f"{what} arrives at less than {MIN_BYTES_PER_S} bytes a second"


class Watch:
    """Closes a request's connection when it is too slow (`Pace`), even if nothing of the file has arrived.

    This covers headers and chunk headers that arrive byte by byte: they are not pieces of the file, and each
    byte restarts httpx's timeout.
    """

    def __init__(self) -> None:
        self.ended = False
        self.pace = Pace()
        self._socket: socket.socket | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watching a store", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Records the connection (httpcore's extension `trace`)."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.ended:
                self._end()

    def _run(self) -> None:
        while (left_s := self.pace.left_s) > 0:
            if self._done.wait(left_s):
                return
        self._end()

    def _end(self) -> None:
        self.ended = True
        if self._socket is not None:
            with suppress(OSError):  # of TCP: another thread reads what TLS is
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


@cache
def _tls() -> ssl.SSLContext:
    """Returns the TLS context of all connections; reading the trusted certificates takes 50 ms."""
    import httpx

    return httpx.create_ssl_context()


def _read_url(url: ModelUrl) -> Iterator[bytes]:
    # imported here, because servers of local files do not need it
    import httpx

    # uncompressed, so that the received bytes are the file's
    headers = {"Accept-Encoding": "identity"}
    watch = Watch()
    try:
        with (
            watch,
            httpx.Client(headers=headers, timeout=TIMEOUT_S, follow_redirects=False, verify=_tls()) as client,
            client.stream("GET", url.text, extensions={"trace": watch.trace}) as answer,
        ):
            if answer.status_code in ABSENT:
                raise FileMissing(f"there is no '{url}'")
            if answer.is_redirect:
                raise FetchError(f"'{url}' redirects, which is not supported; give the final URL")
            if answer.status_code != httpx.codes.OK:
                raise FetchError(f"cannot read '{url}': status {answer.status_code}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                # a few compressed bytes may expand to any size, in one piece
                raise FetchError(f"'{url}' is sent compressed, which was not requested")
            for piece in answer.iter_raw():
                watch.pace.received(len(piece))
                yield piece
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        why = _too_slow(f"'{url}'") if watch.ended else f"cannot read '{url}': {_one_line(e)}"
        raise FetchError(why) from None


def _fsspec(url: ModelUrl) -> Iterator[bytes]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise FetchError(
            f"cannot read '{url}': it needs fsspec, not installed here: pip install 'polyrec[remote]'"
        ) from None
    try:
        system, path = url_to_fs(url.text)
        system.invalidate_cache()  # cached listings may be from an earlier version
        with system.open(path, "rb", block_size=PIECE_BYTES) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except FileNotFoundError:
        raise FileMissing(f"there is no '{url}'") from None
    except Exception as e:  # each store raises its own library's errors
        raise FetchError(f"cannot read '{url}': {_one_line(e)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
