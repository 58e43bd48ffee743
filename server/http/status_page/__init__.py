"""GET /: a page that shows at a glance whether the promise is kept, without Grafana; GET /v1/status feeds it.

Three files of this folder, sent as they are: no build step, nothing from elsewhere. The page asks
/v1/status every second and draws. Whatever it shows is set as text, never as HTML, and the content security
policy forbids anything that is not one of the three files.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from polyrec.models.bundle.bundle import code_version
from polyrec.server.app.engine import Engine
from polyrec.server.dispatch.dispatcher import clock
from polyrec.server.errors import Malformed, NotReady
from polyrec.server.http.connection.reply import HeaderList, Reply, error_reply, json_reply
from polyrec.server.http.plan import describe
from polyrec.server.metrics.metrics import OUTCOMES, REQUEST_EDGES_S, SLO_MISSES, SLO_SHARE

FILES = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/status/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/status/page.js": ("page.js", b"text/javascript; charset=utf-8"),
}
VERSION = code_version()
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: HeaderList = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


def status_routes(engine: Engine) -> list[Route]:
    """The page, and the numbers that it shows."""
    folder = Path(__file__).parent

    def file(path: str) -> Route:
        name, content_type = FILES[path]
        reply = Reply((folder / name).read_bytes(), content_type=content_type, headers=HEADERS)

        async def send(request: Request) -> Reply:
            return reply

        return Route(path, send)

    async def status(request: Request) -> Reply:
        try:
            return json_reply(
                document(engine, _since(request)),
                headers=((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")),
            )
        except Malformed as e:
            return error_reply(e)

    return [*map(file, FILES), Route("/v1/status", status)]


def document(engine: Engine, since: float) -> dict[str, Any]:
    """Everything the page shows. history: samples later than `since`, in seconds since the start; counts are
    cumulative. now: the sample of this moment. serving: what is open, None while loading.
    """
    metrics, now_s = engine.metrics, clock()
    metrics.history.note(now_s)
    try:
        serving = describe(engine.serving)
        model = engine.serving.bundle.manifest.name
    except NotReady:
        serving, model = None, None
    return {
        "state": engine.state.value,
        "version": VERSION,
        "model": model,
        "promised_share": SLO_SHARE,
        "outcomes": OUTCOMES,
        "broken": SLO_MISSES,
        "default_budget_s": engine.default_budget_s,
        "generation": metrics.generations.only.value,
        "edges_s": REQUEST_EDGES_S,
        "lane_deaths": {lane: deaths.value for (lane,), deaths in metrics.lane_deaths.children.items()},
        "serving": serving,
        "now": metrics.history.now(now_s),
        "history": metrics.history.since(since),
    }


def _since(request: Request) -> float:
    """?since=: seconds since the start. Raises Malformed."""
    for name in request.query_params:
        if name != "since":
            raise Malformed(f"unknown parameter '{name[:40]}'; known: since")
    text = request.query_params.get("since", "-1")
    try:
        since = float(text)
    except ValueError:
        since = math.nan
    if not math.isfinite(since):
        raise Malformed(f"parameter 'since' is '{text[:40]}'; it is a number of seconds")
    return since
