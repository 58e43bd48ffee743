"""Serves GET /, a status page that shows without Grafana whether the SLO is met, and its data, GET
/v1/status.

The files in this folder are served unchanged, without a build step and without other hosts. The page requests
/v1/status every second and draws charts with uPlot (uplot/). Values are set as text, never as HTML, and the
content security policy allows only these files.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.requests import Request

from polyrec.models.version import code_version
from polyrec.server.app.engine import Engine
from polyrec.server.clock import clock
from polyrec.server.errors import Malformed, NotReady
from polyrec.server.http.connection.reply import HeaderList, Reply, error_reply, json_reply
from polyrec.server.http.documents import StatusQuery
from polyrec.server.http.openapi import Endpoint, Success, text_response
from polyrec.server.http.plan import describe
from polyrec.server.http.status_page.documents import StatusResponse
from polyrec.server.metrics.error_budget import SLO_MISSES, SLO_SHARE
from polyrec.server.metrics.metrics import OUTCOMES, REQUEST_EDGES_S
from polyrec.server.rollout.traffic import RolloutTraffic

STYLES = {"page": "page.css", "uplot": "uplot/uplot.css"}
SCRIPTS = {
    "uplot": "uplot/uplot.js",
    **{name: f"{name}.js" for name in ("theme", "page", "words", "samples", "verdict", "charts", "tables")},
}
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    **{f"/status/{name}.css": (file, "text/css; charset=utf-8") for name, file in STYLES.items()},
    **{f"/status/{name}.js": (file, "text/javascript; charset=utf-8") for name, file in SCRIPTS.items()},
}
"""File and media type by path."""
DOCS_LINK = b' <a href="/docs">API</a>'
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


def status_routes(engine: Engine, docs: bool) -> list[Endpoint]:
    """Returns the endpoints of the page's files and data. docs: whether there is an API page to link to."""
    folder = Path(__file__).parent

    def file_endpoint(path: str) -> Endpoint:
        name, media_type = FILES[path]
        body = (folder / name).read_bytes()
        reply = Reply(
            body if docs else body.replace(DOCS_LINK, b""), content_type=media_type.encode(), headers=HEADERS
        )

        async def send(request: Request) -> Reply:
            return reply

        return Endpoint(
            path,
            send,
            tag="status",
            summary=f"Status page: {name}",
            response=text_response(media_type),
            include_in_schema=path == "/",
        )

    async def status(request: Request) -> Reply:
        try:
            return json_reply(
                status_document(engine, _parse_since(request)),
                headers=((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")),
            )
        except Malformed as e:
            return error_reply(e)

    return [
        *map(file_endpoint, FILES),
        Endpoint(
            "/v1/status",
            status,
            tag="status",
            summary="The data of the status page",
            query=StatusQuery,
            response=Success(StatusResponse),
        ),
    ]


def status_document(engine: Engine, since: float) -> dict[str, Any]:
    """Returns the data of the page, described by `StatusResponse` (server/http/documents.py).

    since: excludes samples in `history` up to this time, in seconds since the start.
    """
    metrics = engine.metrics
    metrics.sample_if_due()
    now = metrics.current_sample()
    serving, model, metric = None, None, None
    with suppress(NotReady):
        serving = describe(engine.serving)
        model = engine.serving.model.name
        metric = engine.plan.metric
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
        "metric": metric,
        "error_budget": {
            "used": metrics.error_budget.used(),
            "burn_rates": metrics.error_budget.burn_rates(),
        },
        "events": [event.as_dict() for event in metrics.events.since(-math.inf)],
        "lane_deaths": {lane: deaths.value for (lane,), deaths in metrics.lane_deaths.children.items()},
        "serving": serving,
        "live_quality": None if engine.live_quality is None else engine.live_quality.document(),
        "feature_drift": [found.model_dump() for found in metrics.live.drifted(clock())],
        "rollout": _rollout(engine.rollout),
        "unix_time": round(time.time(), 3),
        "now": now,
        "history": metrics.history.since(since),
    }


def _rollout(traffic: RolloutTraffic | None) -> dict[str, Any] | None:
    """Returns the rollout in progress, described by `RolloutSummary`."""
    if traffic is None or traffic.decision is None:
        return None
    decision = traffic.decision
    return {
        "canary_version": traffic.canary.serving.version,
        "share": traffic.split.share,
        "age_s": decision.figures.age_s,
        "reason": decision.reason,
        "is_short": decision.short is not None,
    }


def _parse_since(request: Request) -> float:
    """Parses ?since=, seconds since the start. Raises Malformed."""
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
