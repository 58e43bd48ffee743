"""Locust users of a Polyrec server: `Predict`, `Rank` and `Infer`, with real rows, each request another.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8000            # and open localhost:8089
    locust -f loadtest/locustfile.py --headless -u 8 -t 60s --host URL Rank  # one kind of user

Environment, all of it optional; locust's own variables begin with LOCUST_:

    LOADTEST_BUNDLE  the bundle that is served; `Infer` needs its vocabularies, and is absent without
    LOADTEST_SCHEMA  schema file or shipped name (the bundle's, else trivago)
    LOADTEST_DATA    Parquet file, or packed folder, to ask about (without: generated, trivago's shape)
    LOADTEST_ROWS    how many of its rows are used (20000)
    LOADTEST_RATE    requests a second of each user (as many as it can)

`Infer` sends rankings as binary tensors, the context once. Locust drives a closed loop: a slow server is
asked less. For latencies at a given rate use loadtest/openloop.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import gevent  # type: ignore[import-untyped]
from locust import FastHttpUser, constant, constant_throughput, events, task
from locust.env import Environment
from locust.runners import MasterRunner

from loadtest.client import INFER, PREDICT, RANK
from loadtest.connection import LoadError
from loadtest.queries import Queries, Request, read_rows, rotation
from models.bundle import load_bundle
from models.data.generator import generate
from models.schema import load_schema

PREFIX = "LOADTEST_"
KNOWN = ("BUNDLE", "DATA", "RATE", "ROWS", "SCHEMA")
DIFFERENT_REQUESTS = 1000


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


for _variable in os.environ:
    if _variable.startswith(PREFIX) and _variable.removeprefix(PREFIX) not in KNOWN:
        raise LoadError(f"unknown variable {_variable}; there are {', '.join(PREFIX + k for k in KNOWN)}")
_RATE = _number("RATE", 0)
_ROWS = int(_number("ROWS", 20_000))


@cache
def _queries() -> Queries:
    """What the environment says to ask about."""
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
def _requests(kind: str) -> Iterator[Request]:
    """Shared by all users of a kind, so that no request follows itself."""
    queries = _queries()
    build = getattr(queries, kind)
    return rotation(build(queries[i]) for i in range(min(len(queries), DIFFERENT_REQUESTS)))


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare(environment: Environment, **_: object) -> None:
    """Before the clock runs: requests that are made while it does would be missing from the figures."""
    if not isinstance(environment.runner, MasterRunner):
        for user in environment.user_classes:
            if issubclass(user, _User):
                _requests(user.kind)
    # gevent's clock stood still meanwhile; --run-time would count from before.
    gevent.get_hub().loop.update_now()


class _User(FastHttpUser):
    """Sends requests of one kind, one after another."""

    abstract = True
    wait_time = constant_throughput(_RATE) if _RATE else constant(0)
    kind: str
    path: str

    def on_start(self) -> None:
        self.requests = _requests(self.kind)

    @task
    def ask(self) -> None:
        body, headers = next(self.requests)
        # Typed for text, but made for bytes too: they go out as they are.
        self.client.post(self.path, data=body, headers=headers, name=self.kind)  # type: ignore[arg-type]


class Predict(_User):
    """Rows as JSON columns, the context in each."""

    kind, path = "predict", PREDICT


class Rank(_User):
    """One context and its candidates as JSON."""

    kind, path = "rank", RANK


class Infer(_User):
    """One context and its candidates as binary tensors."""

    abstract = _setting("BUNDLE") is None
    kind, path = "infer_ranking", INFER
