"""Reads files by URL, in pieces: http and https through httpx, all other schemes through fsspec.

Redirects are not followed, so that a model comes from the place that its URL names.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from polyrec.models.errors import PolyrecError
from polyrec.models.fetching.url import SCHEME, ModelUrl

PIECE_BYTES = 4 * 2**20
TIMEOUT_S = 60.0
"""Longest wait for a connection, for an answer's head, and for the next bytes of a file."""
LEAST_BYTES_PER_S = 2**16
"""Least average rate of a file, beyond TIMEOUT_S: while a store dribbles, no other plan is opened."""
WEB = ("http", "https")
ABSENT = (404, 410)


class FetchError(PolyrecError):
    """A model cannot be fetched: no such file, no connection, or content that its manifest contradicts."""


class FileMissing(FetchError):
    """There is no file at the URL."""


def read(url: ModelUrl, most_bytes: int) -> bytes:
    """Reads a whole file. Raises FetchError, also if it has more than `most_bytes`; FileMissing."""
    content = bytearray()
    for piece in pieces(url):
        content += piece
        if len(content) > most_bytes:
            raise FetchError(f"'{url}' has more than {most_bytes} bytes")
    return bytes(content)


def pieces(url: ModelUrl) -> Iterator[bytes]:
    """Reads a file from its beginning. Raises FetchError, also if it arrives too slowly; FileMissing."""
    return paced(_web(url) if url.text.partition(SCHEME)[0] in WEB else _fsspec(url), f"'{url}'")


def paced(
    content: Iterable[bytes], what: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[bytes]:
    """Yields pieces. Raises FetchError once they come at less than LEAST_BYTES_PER_S, TIMEOUT_S aside."""
    begun_s, size = clock(), 0
    for piece in content:
        size += len(piece)
        if clock() - begun_s > TIMEOUT_S + size / LEAST_BYTES_PER_S:
            raise FetchError(f"{what} arrives at less than {LEAST_BYTES_PER_S} bytes a second")
        yield piece


def _web(url: ModelUrl) -> Iterator[bytes]:
    # uncompressed, so that the received bytes are those of the file
    headers = {"Accept-Encoding": "identity"}
    try:
        with (
            httpx.Client(timeout=TIMEOUT_S, follow_redirects=False) as client,
            _answer(client, client.build_request("GET", url.text, headers=headers)) as answer,
        ):
            if answer.status_code in ABSENT:
                raise FileMissing(f"there is no '{url}'")
            if answer.is_redirect:
                raise FetchError(f"'{url}' redirects, which is not followed; give the URL that it leads to")
            if answer.status_code != httpx.codes.OK:
                raise FetchError(f"cannot read '{url}': status {answer.status_code}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                # a few bytes of it may be any number, in one piece
                raise FetchError(f"'{url}' is sent compressed, which was not asked for")
            yield from answer.iter_raw()
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        raise FetchError(f"cannot read '{url}': {_one_line(e)}") from None


@contextmanager
def _answer(client: httpx.Client, request: httpx.Request) -> Iterator[httpx.Response]:
    """Sends a request, and cuts its connection if the answer's head takes more than TIMEOUT_S to arrive.

    The limits of httpx are for each read, of which a store that dribbles a head needs as many as it likes.
    Raises FetchError or httpx.HTTPError.
    """
    streams: list[Any] = []
    late = threading.Event()

    def opened(event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            streams.append(info["return_value"])

    def cut() -> None:
        late.set()
        for stream in streams[-1:]:
            with suppress(OSError):
                # of the socket below TLS: a shutdown of TLS would change what the reading thread uses
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)

    request.extensions["trace"] = opened
    timer = threading.Timer(TIMEOUT_S, cut)
    timer.daemon = True
    timer.start()
    try:
        answer = client.send(request, stream=True)
    except httpx.HTTPError:
        if late.is_set():
            raise FetchError(f"'{request.url}' has sent no answer for {TIMEOUT_S:g} s") from None
        raise
    finally:
        timer.cancel()
    try:
        yield answer
    finally:
        answer.close()


def _fsspec(url: ModelUrl) -> Iterator[bytes]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise FetchError(
            f"cannot read '{url}': it needs fsspec, not installed here: pip install 'polyrec[remote]'"
        ) from None
    try:
        system, path = url_to_fs(url.text)
        system.invalidate_cache()  # cached listings may be of an earlier version
        with system.open(path, "rb", block_size=PIECE_BYTES) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except FileNotFoundError:
        raise FileMissing(f"there is no '{url}'") from None
    except Exception as e:  # each store raises the errors of its own library
        raise FetchError(f"cannot read '{url}': {_one_line(e)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
