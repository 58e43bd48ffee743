"""Serves GET /openapi.json, the OpenAPI document of the served model, and GET /docs, a page to try the API.

The document is built on the first request and again after a reload, in a thread, since that takes tenths of a
second. The page is an unchanged copy of Swagger UI 5.35.0 (Apache-2.0; license in `swagger_ui/`). It loads
nothing from other hosts, and its content security policy allows only the server's own files.
"""

from __future__ import annotations

import asyncio
import gzip
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request

from polyrec.server.app.background import run_in_thread
from polyrec.server.app.engine import Engine
from polyrec.server.app.serving import Serving
from polyrec.server.errors import NotReady
from polyrec.server.http.connection.body import accepted_encoding
from polyrec.server.http.connection.reply import HeaderList, Reply, json_reply
from polyrec.server.http.docs.model_schema import specialize
from polyrec.server.http.openapi import Endpoint, Success, openapi_document, text_response

FOLDER = Path(__file__).parent
HTML = "text/html; charset=utf-8"
CSS = "text/css; charset=utf-8"
SCRIPT = "text/javascript; charset=utf-8"
FILES = {
    "/docs": ("page.html", HTML),
    "/docs/page.css": ("page.css", CSS),
    "/docs/page.js": ("page.js", SCRIPT),
    "/docs/swagger-ui.css": ("swagger_ui/swagger-ui.css.gz", CSS),
    "/docs/swagger-ui-bundle.js": ("swagger_ui/swagger-ui-bundle.js.gz", SCRIPT),
}
"""File and media type by path."""
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: HeaderList = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
CHECKED: HeaderList = ((b"cache-control", b"no-cache"),)
KEPT: HeaderList = ((b"cache-control", b"max-age=86400"),)
"""Cache header of the vendored files, which are large and only change with a release."""
COMPRESSED: HeaderList = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


class ApiDocument:
    """Builds and caches the OpenAPI document of an application, specialized to the served model."""

    def __init__(self, app: FastAPI, engine: Engine) -> None:
        self._app = app
        self._engine = engine
        self._of_any: dict[str, Any] | None = None
        self._reply: asyncio.Future[Reply] | None = None
        engine.on_adopt.append(self._forget)

    def make(self) -> dict[str, Any]:
        """Returns a new document, which is generic while the server loads."""
        if self._of_any is None:
            self._of_any = openapi_document(self._app)
        try:
            return specialize(self._of_any, self._engine.serving)
        except NotReady:
            return self._of_any

    async def reply(self, request: Request) -> Reply:
        """Answers with the cached document, building it if necessary."""
        reply = self._reply
        if reply is None:
            reply = self._reply = run_in_thread(lambda: json_reply(self.make()))
        return await asyncio.shield(reply)

    def _forget(self, serving: Serving) -> None:
        self._reply = None


def docs_routes(document: ApiDocument) -> list[Endpoint]:
    """Returns the endpoints for /openapi.json and the files of /docs."""
    return [
        Endpoint(
            "/openapi.json",
            document.reply,
            tag="status",
            summary="This document",
            response=Success(dict[str, Any]),
        ),
        *(_file_endpoint(path, name, media_type) for path, (name, media_type) in FILES.items()),
    ]


@cache
def _decompressed(content: bytes) -> bytes:
    return gzip.decompress(content)


def _file_endpoint(path: str, name: str, media_type: str) -> Endpoint:
    content = (FOLDER / name).read_bytes()
    zipped, kind = name.endswith(".gz"), media_type.encode()
    # once, since it takes 10 ms of the event loop, and compressing it for a client without gzip 30
    plain = _decompressed(content) if zipped else content

    async def send(request: Request) -> Reply:
        if not zipped:
            return Reply(plain, content_type=kind, headers=(*HEADERS, *CHECKED))
        headers = (*HEADERS, *KEPT)
        if accepted_encoding(request.scope["headers"]) != "gzip":
            return Reply(plain, content_type=kind, headers=headers, compressed=True)
        return Reply(content, content_type=kind, headers=(*headers, *COMPRESSED), compressed=True)

    return Endpoint(
        path,
        send,
        tag="status",
        summary=f"Page of this document: {path.rpartition('/')[2]}",
        response=text_response(media_type),
        include_in_schema=path == "/docs",
    )
