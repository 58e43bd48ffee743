"""Defines Locust users of a Polyrec server: `Predict`, `Rank` and `Infer`, each request with different real
rows.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8000            # and open localhost:8089
    locust -f loadtest/locustfile.py --headless -u 8 -t 60s --host URL Rank  # one kind of user
    locust -f loadtest/locustfile.py --headless --shape spike -u 60 -t 2m --rate 10 --host URL Rank

All flags are optional, and can be set in the environment by the name in brackets; --help also lists Locust's
own:

    --shape      [LOADTEST_SHAPE]    steady, step, spike, diurnal or knee, over -t, with -u users at the peak
    --rate       [LOADTEST_RATE]     requests/s of each user, at Poisson times (default: back to back)
    --budget-ms  [LOADTEST_BUDGET_MS]  latency budget of each request, sent as a header
    --slo-share  [LOADTEST_SLO_SHARE]  exit status 1 if a smaller share was in budget (0.99)
    LOADTEST_BUNDLE      the served bundle; `Infer` needs its vocabularies and is absent without it
    LOADTEST_SCHEMA      schema file or shipped name (default: the bundle's, else trivago)
    LOADTEST_DATA        Parquet file or packed folder of requests (default: generated, like trivago's)
    LOADTEST_ROWS        number of rows to use (20000)
    LOADTEST_CANDIDATES  candidates per request (default: as in the data)

`Infer` sends rankings as binary tensors, with the context once. With a rate, latency runs from the intended
departure, and a user that is behind sends at once. Each user still has one request in flight, so a load is
only as open as it has users; for exact rates, use loadtest/drivers/open_loop.py.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import gevent  # type: ignore[import-untyped]
import numpy as np
from flask import request as flask_request
from locust import FastHttpUser, LoadTestShape, events, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner
from locust.web import WebUI

from polyrec.loadtest.drivers.connection import DEGRADED, LoadError
from polyrec.loadtest.drivers.load import BUDGET
from polyrec.loadtest.results.slo import HEAD, SloTable
from polyrec.loadtest.traffic.queries import Queries, Query, read_rows
from polyrec.loadtest.traffic.request_bodies import INFER, PREDICT, RANK
from polyrec.loadtest.traffic.shapes import KINDS, Knee, share_at
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.errors import PolyrecError
from polyrec.models.schema.schema import load_schema
from polyrec.models.text_table import aligned

PREFIX = "LOADTEST_"
KNOWN = ("BUDGET_MS", "BUNDLE", "CANDIDATES", "DATA", "RATE", "ROWS", "SCHEMA", "SHAPE", "SLO_SHARE")
DIFFERENT_REQUESTS = 1000
DWELL_S = 10.0
SPAWN_RATE = 100.0
MIN_USERS = 10
EARLY_S = 0.001
"""Users wake this long before a departure: gevent's timers are not exact."""

INVALID = (400, 404, 422)
"""Requests that this server never answers: its reason is shown, the first SHOWN characters."""
SHOWN = 300

PATIENCE_S = 10.0
"""When the test ends, a request that has waited so long, or for its budget if that is less, has failed."""

SLO_TABLE = SloTable()
KNEE = Knee(DWELL_S)


def _setting(name: str) -> str | None:
    return os.environ.get(PREFIX + name) or None


def _number(name: str, default: float) -> float:
    text = _setting(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise LoadError(f"{PREFIX}{name} is '{text}'; give a number above 0")
    return number


@contextmanager
def _mistakes_in_one_line() -> Iterator[None]:
    """Ends Locust with a user's mistake as its last line, where Locust would show a traceback."""
    try:
        yield
    except PolyrecError as e:
        print(f"locustfile: error: {e}", file=sys.stderr)
        raise SystemExit(2) from None


with _mistakes_in_one_line():
    for _variable in os.environ:
        if _variable.startswith(PREFIX) and _variable.removeprefix(PREFIX) not in KNOWN:
            raise LoadError(f"unknown variable {_variable}; there are {', '.join(PREFIX + k for k in KNOWN)}")
    _ROWS = int(_number("ROWS", 20_000))
    _CANDIDATES = int(_number("CANDIDATES", 0))
    _DEFAULTS = {"rate": _number("RATE", 0), "budget_ms": _number("BUDGET_MS", 0)}
    _SHARE = _number("SLO_SHARE", 0.99)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _flags(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--shape",
        choices=KINDS,
        default=_setting("SHAPE"),
        help="shape of the load over -t, with -u users at the peak",
    )
    add("--rate", type=float, default=_DEFAULTS["rate"], help="requests/s per user; 0: without pauses")
    add("--budget-ms", type=float, default=_DEFAULTS["budget_ms"], help="latency budget; 0: none")
    add(
        "--slo-share",
        type=float,
        default=_SHARE,
        help="minimum share of requests within budget for exit status 0",
    )


@cache
def _queries() -> Queries:
    """Loads the queries that the environment specifies."""
    where, data = _setting("BUNDLE"), _setting("DATA")
    bundle = None if where is None else load_bundle(where)
    named = _setting("SCHEMA")
    if named is None and bundle is not None:
        schema = bundle.manifest.schema_
    else:
        schema = load_schema(named or "trivago")
    encoder = None if bundle is None else bundle.encoder
    if data is not None:
        return Queries(read_rows(data, schema, _ROWS), schema, encoder)
    with tempfile.TemporaryDirectory() as folder:
        made = generate(Path(folder) / "clicks.parquet", _ROWS, seed=1).path
        return Queries(read_rows(made, schema, _ROWS), schema, encoder)


@cache
def _requests(kind: str) -> Iterator[tuple[bytes, dict[str, str], int]]:
    """Cycles through (body, headers, rows); shared by all users of a kind, so that their requests differ."""
    queries = _queries()
    build = getattr(queries, kind)
    drawing = np.random.default_rng(1)

    def made(i: int) -> tuple[bytes, dict[str, str], int]:
        query: Query = queries.sample(_CANDIDATES, drawing) if _CANDIDATES else queries[i]
        body, headers = build(query)
        return body, headers, query.candidates.size

    n = DIFFERENT_REQUESTS if _CANDIDATES else min(len(queries), DIFFERENT_REQUESTS)
    different = {body: (body, headers, rows) for body, headers, rows in map(made, range(n))}
    if len(different) < 2:
        raise LoadError("all rows make the same request; a load test needs two different ones")
    return cycle(different.values())


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare(environment: Environment, **_: object) -> None:
    """Builds all requests before the clock starts, because building them later would delay users."""
    if not isinstance(environment.runner, MasterRunner):
        for user in environment.user_classes:
            if issubclass(user, _User):
                with _mistakes_in_one_line():
                    _requests(user.kind)
    if environment.web_ui is not None:
        _extend(environment, environment.web_ui)
    # gevent's clock stood still meanwhile, and --run-time would count from before
    gevent.get_hub().loop.update_now()


def _extend(environment: Environment, page: WebUI) -> None:
    """Adds a tab with the SLO columns to Locust's page."""
    app = page.app
    assert app is not None
    columns = [{"key": str(i), "title": title} for i, title in enumerate(HEAD)]
    page.template_args |= {
        "extended_tabs": [{"title": "SLO", "key": "slo"}],
        "extended_tables": [{"key": "slo", "structure": columns}],
    }

    @app.after_request
    def add_slo_rows(response: Any) -> Any:
        if flask_request.path == "/stats/requests" and response.is_json:
            rows = SLO_TABLE.table(_seconds(environment))[1:]
            data = [{str(i): cell for i, cell in enumerate(row)} for row in rows]
            more = {"extended_stats": [{"key": "slo", "data": data}]}
            response.set_data(app.json.dumps(response.json | more))
        return response


def _seconds(environment: Environment) -> float:
    total = environment.stats.total
    last: float = total.last_request_timestamp or total.start_time
    return last - float(total.start_time)


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def _begin(**_: object) -> None:
    SLO_TABLE.kinds = {}


@events.report_to_master.add_listener  # type: ignore[untyped-decorator]
def _report_to_master(client_id: str, data: dict[str, Any]) -> None:
    data["slo"] = SLO_TABLE.pop()


@events.worker_report.add_listener  # type: ignore[untyped-decorator]
def _merge_report(client_id: str, data: dict[str, Any]) -> None:
    SLO_TABLE.merge(data.get("slo", {}))


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def _verdict(environment: Environment, **_: object) -> None:
    """Prints the SLO table; with a budget, sets exit status 1 if the SLO was missed or nothing was sent."""
    options = environment.parsed_options
    if isinstance(environment.runner, WorkerRunner) or options is None:
        return
    if not SLO_TABLE.kinds:
        if options.headless and options.budget_ms:
            print("no request was sent, so the SLO was not met", file=sys.stderr)
            environment.process_exit_code = 1
        return
    print("", *aligned(SLO_TABLE.table(_seconds(environment))), sep="\n", file=sys.stderr)
    if KNEE.met is not None or KNEE.missed is not None:
        peak = (options.num_users or MIN_USERS) * options.rate
        met, missed = (f"{s * peak:.0f} requests/s" if s else "none" for s in (KNEE.met, KNEE.missed))
        print(
            f"knee: highest load that met the SLO: {met}; lowest that missed it: {missed}",
            file=sys.stderr,
        )
    elif options.budget_ms:
        environment.process_exit_code = int(SLO_TABLE.total().share < options.slo_share)


class _User(FastHttpUser):
    """Sends requests of one kind, one after another, at Poisson times if there is a rate."""

    abstract = True
    kind: str
    path: str

    def on_start(self) -> None:
        self.requests = _requests(self.kind)
        options = self.environment.parsed_options
        self.rate: float = getattr(options, "rate", _DEFAULTS["rate"])
        budget_ms: float = getattr(options, "budget_ms", _DEFAULTS["budget_ms"])
        self.budget_s = budget_ms / 1e3 if budget_ms else float("inf")
        # ranking clients are near their model, and compressing answers would dominate the measurement
        self.more = {"Accept-Encoding": "identity"} | ({BUDGET: f"{budget_ms:g}"} if budget_ms else {})
        self.random = random.Random()
        # spread the first requests, or users that start together would send together
        self.due = perf_counter() + (self.random.expovariate(self.rate) if self.rate else 0.0)

    def wait_time(self) -> float:
        """Returns the seconds until shortly before the next departure, 0 if it has passed."""
        return max(0.0, self.due - perf_counter() - EARLY_S)

    @task
    def send(self) -> None:
        if self.rate:
            # Locust does not wait before the first request
            gevent.sleep(self.wait_time())
            while perf_counter() < self.due:
                gevent.sleep(0)
        sent = perf_counter()
        due = self.due if self.rate else sent
        try:
            self._ask(due, sent)
        except gevent.GreenletExit:
            self._cut_off(due)
            raise
        if self.rate:
            self.due += self.random.expovariate(self.rate)

    def _ask(self, due: float, sent: float) -> None:
        """Sends a request and counts its answer."""
        body, headers, rows = next(self.requests)
        # typed as text, but bytes are sent unchanged
        with self.client.post(
            self.path,
            data=body,  # type: ignore[arg-type]
            headers=headers | self.more,
            name=self.kind,
            catch_response=True,
        ) as answer:
            took = answer.request_meta["response_time"] / 1e3 + (sent - due)
            answer.request_meta["response_time"] = 1e3 * took
            status = answer.status_code or 0
            degraded = DEGRADED in (answer.content or b"")
            SLO_TABLE.count(self.kind, rows, took, self.budget_s, status, degraded, sent - due)
            if status in INVALID:
                answer.failure(f"{status}: {(answer.text or '')[:SHOWN]}")

    def _cut_off(self, due: float) -> None:
        """Counts what had no answer when the test ended: the request, and those that were due meanwhile.

        Otherwise a server that stopped answering in mid-test would seem perfect.
        """
        now, limit_s = perf_counter(), min(self.budget_s, PATIENCE_S)
        while now - due > limit_s:
            SLO_TABLE.count(self.kind, 0, now - due, self.budget_s, 0, False, 0.0)
            self.environment.events.request.fire(
                request_type="POST",
                name=self.kind,
                response_time=1e3 * (now - due),
                response_length=0,
                exception=TimeoutError("no answer when the test ended"),
                context={},
            )
            if not self.rate:
                break
            due += self.random.expovariate(self.rate)


class Predict(_User):
    """Sends rows as JSON columns, with the context in each row."""

    kind, path = "predict", PREDICT


class Rank(_User):
    """Sends one context and its candidates as JSON."""

    kind, path = "rank", RANK


class Infer(_User):
    """Sends one context and its candidates as binary tensors."""

    abstract = _setting("BUNDLE") is None
    kind, path = "infer_ranking", INFER


if _setting("SHAPE") or any(a.split("=")[0] == "--shape" for a in sys.argv):
    # Locust uses a shape whenever a file defines one, and then leaves -u and -t to it

    class Shape(LoadTestShape):
        """Applies the load of --shape over the time of -t, with -u users at the peak."""

        use_common_options = True

        def tick(self) -> tuple[int, float] | None:
            assert self.runner is not None
            options: Any = self.runner.environment.parsed_options
            at_s = perf_counter() - self.start_time
            if options.shape == "knee":
                total = SLO_TABLE.total()
                share = KNEE.at(at_s, total.requests, total.in_budget, options.slo_share)
            else:
                share = share_at(options.shape, at_s, float(options.run_time or 60))
            return (
                None
                if share is None
                else (max(1, round((options.num_users or MIN_USERS) * share)), SPAWN_RATE)
            )
