"""`polyrec demo`: all steps on generated data: train, profile, plan, serve, answer, load, keep serving."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrec.loadtest.arguments import non_negative_int, port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from polyrec.models.schema.schema import Schema
    from polyrec.planner.profile import Profile
    from polyrec.server.child import ServerProcess

    Say = Callable[[str], None]
    Quality = Mapping[str, float | int | None]

EXAMPLE = "polyrec demo --once"

ROWS, LOOP_ROWS = 300_000, 120_000
WIDTHS = (4, 32)
"""One table, two sizes of model: the first 4 or all 32 columns of each row.

They differ beyond noise in information (by .006, .007, .010 at seeds 0 to 2) and in time. The plan drops
what does not: from 2 to 8 columns time hardly grows, most of it being parsing and lookups.
"""
SHAPE = {"top": (1024, 256)}
RECIPE = {"sparse_lr": 0.2, "refit": False}
LOADS = (("at rest", 0.05), ("busy", 0.45), ("peak", 0.85))
"""Loads to show, as shares of what the lanes can do on the narrowest path, as profiled."""
SECOND_LANE = 1.3
"""Times what one lane does that several do on two cores, of which the load's sender takes a part."""
LOAD_SECONDS = 4.0
SLOS_MS = (20, 50, 200, 1000)
"""Candidates for the SLO: the demo plans for the first that this machine can meet."""
CANDIDATES = 200
"""Candidates of a request under load, on average: most of its cost is the model's, not the protocol's."""
PLANNED_LOAD = 0.5
"""Planned rate, as a share of what one lane can do on the widest path; the rest is the plan's reserve."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="runs/demo", help="folder for data, bundles and plan (default runs/demo)"
    )
    parser.add_argument(
        "--rows", type=int, help="rows to generate (default 300,000; with --loop 120,000, in eight days)"
    )
    parser.add_argument("--seed", type=non_negative_int, default=0, help="seed of the data (default 0)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument(
        "--port", type=port, default=8000, help="port to listen on, 0 for a free one (default 8000)"
    )
    parser.add_argument(
        "--loop",
        action="store_true",
        help="show `polyrec loop` instead: tastes shift, a frozen model decays, the loop follows; then exit",
    )
    parser.add_argument("--once", action="store_true", help="exit after one answer")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import json
    import time

    import torch

    from polyrec.report.page import make_folder
    from polyrec.server.app.listening import listen

    def say(line: str) -> None:
        if not args.json:
            print(line, flush=True)

    torch.set_num_threads(1)
    if args.loop:
        from polyrec.cli.start.demo_loop import run_loop_demo

        result = run_loop_demo(Path(args.out), args.rows or LOOP_ROWS, args.seed, say)
        if args.json:
            print(json.dumps(result))
        return 0
    listen(args.host, args.port).close()  # report a port in use before the training
    out = Path(args.out)
    make_folder(out)
    begin = time.perf_counter()
    clicks, schema = _generate(out, args.rows or ROWS, args.seed, say)
    metrics, ceiling = _train(out, clicks, schema, say)
    _plan(out, clicks, say)
    rank_body, predict_body = _request_bodies(clicks, schema)
    (out / "rank.json").write_bytes(rank_body)
    (out / "predict.json").write_bytes(predict_body)
    settings = {"plan": out / "plan.json", "host": args.host, "port": args.port}
    with start_logged(settings, out / "server.log") as server:
        say(f"5. serving at {server.url}; its log: {out / 'server.log'}")
        headers, answer = _post(f"{server.url}/v1/rank", rank_body)
        say(f"6. POST /v1/rank with {out / 'rank.json'}, answered by {headers['x-polyrec-path']}:")
        say(f"   {json.dumps(answer)}")
        loads = _load(server.url, out, clicks, say)
        seconds = time.perf_counter() - begin
        if args.json:
            result = {"metrics": metrics, "planted": ceiling, "answer": answer, "url": server.url}
            result |= {"loads": loads}
            print(json.dumps(result | {"seconds": round(seconds, 1)}), flush=True)
        if args.once:
            return 0
        say(f"\nReady after {seconds:.0f} s. It keeps serving until Ctrl-C. Try:\n")
        for line in _example_commands(server.url, str(out)):
            say(f"  {line}")
        return serve_until_signaled(server)


def start_logged(settings: Mapping[str, object], log: Path) -> ServerProcess:
    """Starts the server with its messages in a file, where they do not mix with the demo's.

    Raises StartFailed with the server's own reason.
    """
    from polyrec.server.child import start

    with log.open("w") as stderr:
        return start(settings, stderr, lifeline=True, own_group=True)


def serve_until_signaled(server: ServerProcess) -> int:
    """Waits for the server and returns its exit status; forwards SIGINT and SIGTERM to it.

    server: in a process group of its own, so that Ctrl-C signals it only once; a second signal would hurry
    its drain.
    """
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: server.process.send_signal(number))
    return server.process.wait()


def _generate(out: Path, rows: int, seed: int, say: Say) -> tuple[Path, Schema]:
    """Generates the clicks; returns the file and its schema."""
    from polyrec.cli.progress import ProgressBars
    from polyrec.models.data.synthetic.generator import generate
    from polyrec.models.schema.schema import load_schema

    with ProgressBars() as bars:
        planted = generate(out / "clicks.parquet", rows, seed, progress=bars.phase("generate", rows))
    say(f"1. {planted.rows:,} rows, {planted.requests:,} requests, {planted.clicks:,} clicks: {planted.path}")
    return planted.path, load_schema("trivago")


def _train(out: Path, clicks: Path, schema: Schema, say: Say) -> tuple[dict[str, Quality], Quality]:
    """Trains one bundle of nested widths; returns each width's quality on the test rows, and its upper
    bound.
    """
    from math import nan

    from polyrec.cli.progress import ProgressBars
    from polyrec.models.data.reader import open_data
    from polyrec.models.data.split import fit_splitter
    from polyrec.models.data.synthetic.ceiling import best_possible_quality
    from polyrec.models.training.pipeline import Learner
    from polyrec.models.training.recipe import default_recipe_file

    reader = open_data(clicks, schema)
    with ProgressBars() as bars:
        training = default_recipe_file(schema).with_shape(SHAPE).with_widths(WIDTHS).with_recipe(RECIPE)
        learner = Learner(reader, schema, training, phase=bars.phase, progress=bars.training)
        bundle = learner.learn(out / "table", replace=True)
    ceiling = best_possible_quality(clicks, fit_splitter(reader, schema)).as_dict()
    tests = {view.name: view.test_metrics for view in bundle.by_width()}
    constant = bundle.manifest.metrics.get("constant", {})
    say("2. trained one table with heads for two widths; quality on the test rows, with a constant")
    say("   prediction below and the generator's true probabilities above:")
    say(f"   {'':>11} {'constant':>10}{''.join(f'{name:>11}' for name in tests)}    planted")
    for key in ("information", "auc", "log_loss", "mrr"):
        figures = [constant.get(key), *(test.get(key) for test in tests.values()), ceiling.get(key)]
        say(f"   {key:>11}" + "".join(f"{nan if v is None else v:11.4f}" for v in figures))
    say("   (information: the explained share of the clicks' uncertainty, which the router maximizes)")
    return dict(tests), ceiling


def _plan(out: Path, clicks: Path, say: Say) -> None:
    """Writes profile.json and plan.json. Raises PolyrecError if this machine meets none of the SLOs."""
    from polyrec.models.errors import PolyrecError
    from polyrec.planner.plan import load_plan
    from polyrec.planner.profile import load_profile

    profile, planned = str(out / "profile.json"), str(out / "plan.json")
    quickly = ("--seconds", "1", "--max-rows", "1024", "--fresh", "--data", str(clicks))
    if error := _run_verb("profile", str(out / "table"), *quickly, "--out", profile):
        raise PolyrecError(error)
    say(f"3. profiled on this machine: {profile} (quickly; `polyrec profile` takes its time)")
    rate = PLANNED_LOAD / _request_s(load_profile(profile), WIDTHS[-1])
    traffic = f"rate={rate:.0f},sizes=lognormal:{CANDIDATES}"
    for slo_ms in SLOS_MS:
        requirements = ("--slo-ms", str(slo_ms), "--traffic", traffic)
        if not (error := _run_verb("plan", "--profile", profile, *requirements, "--out", planned)):
            break
    else:
        raise PolyrecError(error)
    plan = load_plan(planned)
    say(f"4. planned for {traffic} within {slo_ms} ms: {planned}")
    say(f"   {', '.join(path.name for path in plan.paths)} on {', '.join(p.name for p in plan.all_lanes())}")


def _request_s(profile: Profile, width: int) -> float:
    """Returns the seconds of one core for a request of CANDIDATES rows at a width, including reading and
    writing.
    """
    latencies = [path.latency for path in profile.paths if path.path.width == width]
    assert profile.front is not None  # the demo's own profile measures the front
    front_s = profile.front.query_s + CANDIDATES * profile.front.row_s
    return front_s + min(latency.median(CANDIDATES) for latency in latencies)


def _run_verb(*arguments: str) -> str:
    """Runs another verb, discarding its output; returns its error message, or ''."""
    import io
    from contextlib import redirect_stdout

    from polyrec.cli.main import build_parser
    from polyrec.models.errors import PolyrecError

    args = build_parser().parse_args(arguments)
    try:
        with redirect_stdout(io.StringIO()):
            args.run(args)
    except PolyrecError as e:
        return str(e)
    return ""


def _request_bodies(path: Path, schema: Schema) -> tuple[bytes, bytes]:
    """Builds bodies of /v1/rank and /v1/predict from the last request of the data."""
    import json

    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    rows = file.read_row_group(file.metadata.num_row_groups - 1)
    last = rows.filter(pc.equal(rows["request_id"], rows["request_id"][-1]))
    context = last.slice(0, 1).select(schema.context.names).to_pylist()[0]
    candidates = last.select(schema.candidate.names).to_pydict()
    rank = {"context": context, "candidates": candidates, "top_k": 5}
    predict = {
        "instances": last.slice(0, 2).select(schema.context.names + schema.candidate.names).to_pylist()
    }
    return json.dumps(rank).encode(), json.dumps(predict).encode()


def _load(url: str, out: Path, clicks: Path, say: Say) -> list[dict[str, Any]]:
    """Sends the data's requests at a low and at a high rate; returns the figures of each."""
    import numpy as np

    from polyrec.loadtest.drivers.connection import Target
    from polyrec.loadtest.drivers.load import load_of
    from polyrec.loadtest.drivers.open_loop import Limits, run
    from polyrec.loadtest.drivers.server_pages import path_qualities
    from polyrec.loadtest.results.figures import figures
    from polyrec.loadtest.traffic.request_bodies import RANK
    from polyrec.loadtest.traffic.source import open_source
    from polyrec.models.bundle.bundle import load_bundle
    from polyrec.planner.arrivals import arrival_times
    from polyrec.planner.plan import load_plan
    from polyrec.planner.profile import load_profile
    from polyrec.planner.traffic import Arrivals, Sizes

    source = open_source(str(clicks), load_bundle(out / "table"), 0)
    target = Target(url + RANK, {"Content-Type": "application/json"})
    plan = load_plan(out / "plan.json")
    budget_s = plan.default_budget_ms / 1e3
    quality, accuracy = path_qualities(url)
    profile = load_profile(out / "profile.json")
    max_rate = (SECOND_LANE if len(plan.all_lanes()) > 1 else 1.0) / _request_s(profile, WIDTHS[0])
    sizes = Sizes(kind="lognormal", mean=CANDIDATES)
    found = []
    say(f"7. which width answers, {LOAD_SECONDS:g} s at each load, requests of {CANDIDATES} candidates")
    say(f"   within {1e3 * budget_s:g} ms; the best path's information is {max(quality.values()):.4f} a row:")
    if profile.is_of_busy_machine:
        say(f"   (this machine is busy: other work held the core for {profile.cpu_wait:.0%} of the profile's")
        say("   time, so fewer may be in time than on an idle one)")
    for name, share in LOADS:
        rate = share * max_rate
        random = np.random.default_rng(0)
        due = arrival_times(Arrivals(), rate, LOAD_SECONDS, random)
        rows, body = source.sampled(sizes.sample(due.size, random), 0)
        load = load_of(target, due, LOAD_SECONDS, body, rows=rows, budget_s=budget_s, prepare=True)
        seen = figures(run(target, load, Limits()), quality, accuracy)
        mix = ", ".join(f"{path} {part:.0%}" for path, part in seen.mix.items() if part >= 0.005)
        say(f"   {name:>8}: {rate:7,.0f} requests/s, {seen.ok:6.1%} in time, answered by {mix or 'nothing'};")
        say(f"             information {seen.quality or 0:.4f} a row")
        found.append({"load": name, "rate": rate, "ok": seen.ok, "quality": seen.quality, "mix": seen.mix})
    return found


def _post(url: str, body: bytes) -> tuple[Mapping[str, str], Any]:
    """Posts a JSON body; returns the headers and the parsed answer."""
    import json
    import urllib.request

    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.headers, json.load(response)


def _example_commands(url: str, out: str) -> list[str]:
    return [
        f"curl -s {url}/v1/rank -d @{out}/rank.json",
        f"curl -si {url}/v1/predict -H 'X-Latency-Budget-Ms: 20' -d @{out}/predict.json",
        f"curl -s {url}/v1/paths",
        f"curl -s '{url}/v1/route?rows=500&budget_ms=5'",
        f"curl -s {url}/v1/models",
        f"curl -s {url}/metrics | grep polyrec_request",
    ]
