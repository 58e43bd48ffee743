"""A web server for a folder, whose answers a test can delay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Meet = Callable[["Files"], bool]


class Files(SimpleHTTPRequestHandler):
    """Answers with files. asked: the paths so far. meet: says whether it has answered a request itself."""

    def __init__(self, *given: object, asked: list[str], meet: Meet, directory: str) -> None:
        self.asked, self.meet = asked, meet
        super().__init__(*given, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if not self.meet(self):
            super().do_GET()

    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def serving(folder: Path, meet: Meet = lambda _: False) -> Iterator[tuple[str, list[str]]]:
    """Serves a folder; yields the URL and the paths that were asked for."""
    asked: list[str] = []
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Files, asked=asked, meet=meet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
