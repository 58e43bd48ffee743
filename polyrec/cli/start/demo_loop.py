"""Runs `polyrec demo --loop`: tastes shift from day to day; a frozen model decays, and the loop keeps up.

A day takes seconds: its requests are sent to a real server, which logs them, and its clicks are reported.
Then the steps of `polyrec loop` run on the log. The canary gets the same requests again without labels, which
the log leaves out. On one day, clicks are reported for the wrong rows.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from polyrec.client.admin import AdminCalls
from polyrec.loop.canary import Canary
from polyrec.loop.folder import LoopFolder
from polyrec.loop.iteration import Iteration
from polyrec.loop.loop import Loop
from polyrec.loop.steps import LoopSettings, only_bundle
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.errors import PolyrecError
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.files import write_text
from polyrec.models.schema.schema import Schema, load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_recipe_file
from polyrec.planner.plan import load_plan, save_plan, single_path_plan
from polyrec.report.page import make_folder
from polyrec.server.child import start

DAYS, BROKEN_DAY = 8, 4
"""Number of days, the first for the first model, and the day whose clicks are reported for wrong rows."""
ITEMS, USERS = 500, 500
RECIPE = {"sparse_lr": 0.2, "refit": False}
FEEDBACK_AT_ONCE = 20
WINDOW_S, SETTLE_S, FLUSH_S = 5.0, 2.0, 1.0
"""Seconds in which labels may come, that an iteration waits for complete files, and between files."""
CANARY = {
    "share": 0.5,
    "shadow": 0.5,
    "by": "user_id",
    # wide bounds: the canary's lane only gets spare time, and tastes shift here in a day as they do in months
    "bounds": {
        **{"max_failed": 0.5, "max_late": 0.5, "max_slowdown": 1000.0, "slack_ms": 1e4},
        **{"max_psi": 1.0, "max_loss": 0.2, "min_requests": 100, "promote_after_s": 2.0},
    },
}
CANARY_S = 120.0
Say = Callable[[str], None]


def run_loop_demo(out: Path, rows: int, seed: int, say: Say) -> dict[str, Any]:
    """Runs the demo in a new folder below `out`; returns its result as JSON."""
    schema = load_schema("trivago")
    folder = make_folder(out / f"loop-{time.strftime('%Y%m%d-%H%M%S')}")
    days = _days(folder / "clicks.parquet", rows, seed, schema)
    say(f"1. {rows:,} rows in {DAYS} days, over which tastes turn into others: {folder / 'clicks.parquet'}")
    frozen = _train_first(days[0], folder, schema)
    save_plan(single_path_plan(frozen, "table", "onnx"), folder / "plan.json")
    admin_token, token = secrets.token_hex(16), secrets.token_hex(16)
    found = []
    with (
        start(_server_settings(folder, admin_token, token)) as server,
        AdminCalls(server.url, token=admin_token) as calls,
    ):
        say(f"2. trained on the first day, serving at {server.url}; from here on, it learns what it serves")
        say("   day   frozen   looped   what the loop did after the day")
        loop = Loop(
            LoopFolder(folder / "state"),
            LoopSettings(folder / "log", least_clicks=50, margin=0.05),
            every_s=1.0,
            settle_s=SETTLE_S,
            canary=Canary(calls, CANARY, CANARY_S),
        )
        with _shop(server.url, token) as shop:
            for day, table in enumerate(days[1:], 1):
                looped = frozen if day == 1 else only_bundle(load_plan(loop.folder.plan))
                paths = {"frozen": frozen, "looped": looped}
                quality = _information(folder / f"day-{day}.parquet", table, paths)
                shop.visit(table, schema, day, wrong=day == BROKEN_DAY)
                if day == 1:
                    loop.begin(folder / "plan.json")
                # an iteration uses rows up to a whole second
                time.sleep(WINDOW_S + SETTLE_S + 1)
                with shop.repeating():
                    iteration = _run_iteration(loop)
                say(_day_line(day, quality, iteration))
                found.append({"day": day, **quality, "state": iteration.state, "step": iteration.step})
    say(f"3. every step with its figures: polyrec loop status --state {folder / 'state'}")
    picture = _picture(folder, found)
    if picture is not None:
        say(f"   picture: {picture}")
    return {"days": found, "folder": str(folder)}


def _train_first(day: pa.Table, folder: Path, schema: Schema) -> Path:
    """Trains the first model on the first day; returns its bundle."""
    pq.write_table(day, folder / "day-0.parquet")
    training = default_recipe_file(schema).with_recipe(RECIPE)
    learner = Learner(open_data(folder / "day-0.parquet", schema), schema, training, baselines=False)
    return learner.learn(folder / "first").path


def _server_settings(folder: Path, admin_token: str, token: str) -> dict[str, Any]:
    """Returns the settings of the server, and writes its tokens file. token: the shop's."""
    clients = [{"name": "demo", "token": token, "rights": ["feedback"], "requests_per_second": 1e6}]
    write_text(folder / "tokens.json", orjson.dumps({"clients": clients}).decode())
    return {
        "plan": folder / "plan.json",
        "admin_token": admin_token,
        "tokens": folder / "tokens.json",
        "prediction_log": folder / "log",
        "prediction_log_flush_s": FLUSH_S,
        "prediction_log_window_s": WINDOW_S,
        "prediction_log_unlabeled": "leave_out",
        "default_budget_ms": 10_000,
        "log_level": "error",
    }


def _day_line(day: int, quality: Mapping[str, float], iteration: Iteration) -> str:
    """Returns the line of a day: information gain of both models, and what the loop did."""
    state = iteration.done[-1].result.reason
    if iteration.state == "held":
        state = f"held: {state}"
    figures = "   ".join(f"{value:.4f}" for value in quality.values())
    return f"   {day:>3}   {figures}   {state}" + (" (clicks were wrong)" if day == BROKEN_DAY else "")


def _days(file: Path, rows: int, seed: int, schema: Schema) -> list[pa.Table]:
    """Generates days of about equal size."""
    generate(file, rows, seed, items=ITEMS, users=USERS, tastes=1.0)
    table = pq.read_table(file)
    starts = _starts(table, schema)
    ends = [int(starts[np.searchsorted(starts, rows * n // DAYS)]) for n in range(DAYS)]
    return [table.slice(a, b - a) for a, b in pairwise([*ends, rows])]


def _starts(table: pa.Table, schema: Schema) -> np.ndarray:
    """Returns the first row of each request, int64; rows of a request are adjacent."""
    group = table.column(schema.group).to_numpy()
    return np.concatenate(([0], np.flatnonzero(group[1:] != group[:-1]) + 1))


def _information(file: Path, table: pa.Table, paths: Mapping[str, Path]) -> dict[str, float]:
    """Returns the information gain of bundles on a day that none of them was trained on."""
    pq.write_table(table, file)
    made = predict_all(
        {name: load_bundle(path) for name, path in paths.items()}, file, (TRAIN, VALIDATION, TEST)
    )
    return {n: round(evaluate(p, made.label).information, 4) for n, p in made.probabilities.items()}


def _run_iteration(loop: Loop) -> Iteration:
    """Runs an iteration once the day's rows are final. Raises PolyrecError if a step fails."""
    until = time.monotonic() + CANARY_S
    while True:
        loop.advance(at_once=True)
        iteration = loop.folder.last()
        assert iteration is not None
        if iteration.error is not None:
            raise PolyrecError(f"the loop's {iteration.step}: {iteration.error}")
        if iteration.state == "waiting" and time.monotonic() < until:
            time.sleep(0.5)
        elif iteration.state != "running":
            return iteration


class _Shop:
    """A client that requests rankings and reports clicks."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._bodies: list[bytes] = []

    def visit(self, table: pa.Table, schema: Schema, day: int, wrong: bool) -> None:
        """Sends a day's requests and their labels. wrong: reports the labels of other rows."""
        label = table.column("clicked").to_numpy().copy()
        if wrong:
            np.random.default_rng(day).shuffle(label)
        starts = _starts(table, schema)
        self._bodies, labels = [], []
        for a, b in pairwise([*starts.tolist(), table.num_rows]):
            part = table.slice(a, b - a)
            context = part.slice(0, 1).select(schema.context.names).to_pylist()[0]
            candidates = part.select(schema.candidate.names).to_pydict()
            self._bodies.append(orjson.dumps({"context": context, "candidates": candidates}))
            labels.append(label[a:b].tolist())
        for at in range(0, len(labels), FEEDBACK_AT_ONCE):
            given = []
            for i in range(at, min(at + FEEDBACK_AT_ONCE, len(labels))):
                self._rank(self._bodies[i], {"x-request-id": f"day-{day}-{i}"})
                given.append({"request_id": f"day-{day}-{i}", "labels": labels[i]})
            self._http.post("/v1/feedback", json={"feedback": given}).raise_for_status()

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Repeats the requests of the last visit, without labels, for the canary."""
        stop = threading.Event()

        def repeat() -> None:
            while not stop.is_set():
                for body in self._bodies:
                    if stop.wait(0.005):
                        return
                    self._rank(body, {})

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _rank(self, body: bytes, headers: Mapping[str, str]) -> None:
        answer = self._http.post(
            "/v1/rank", content=body, headers={"content-type": "application/json", **headers}
        )
        answer.raise_for_status()


@contextmanager
def _shop(url: str, token: str) -> Iterator[_Shop]:
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, timeout=60, headers=headers, trust_env=False) as http:
        yield _Shop(http)


def _picture(folder: Path, days: Sequence[Mapping[str, Any]]) -> Path | None:
    """Draws the days; returns None if matplotlib is not installed."""
    try:
        from polyrec.report.chart import Chart, Series, draw, png
    except ImportError:
        return None
    x = np.array([d["day"] for d in days], np.float64)
    series = tuple(
        Series(name, x, np.array([d[name] for d in days]), i) for i, name in enumerate(("looped", "frozen"))
    )
    marks = ((float(BROKEN_DAY), "wrong clicks"),)
    chart = Chart("", "", "day", "information gain", series, marks=marks)
    file = folder / "loop.png"
    file.write_bytes(png(draw([chart], title="A frozen model and one that follows")))
    return file
