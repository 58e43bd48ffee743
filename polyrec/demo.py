"""`polyrec demo`: the whole path on generated data: train, plan, serve, answer, keep serving."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from models.schema import Schema

HELP = "generate data, train, plan, serve and answer a ranking request"
EXAMPLE = "polyrec demo --once"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="runs/demo", help="folder for data, bundle and plan")
    parser.add_argument("--rows", type=int, default=300_000, help="rows to generate (default 300,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default 8000)")
    parser.add_argument("--once", action="store_true", help="exit after the answer")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import json
    import signal
    import time

    import torch

    from models.data.ceiling import planted_quality
    from models.data.generator import generate
    from models.data.reader import open_data
    from models.data.split import split_of
    from models.learning import Learner, default_training
    from models.runtimes import best_runtime
    from models.schema import load_schema
    from planner.plan import save_plan, single_path_plan
    from polyrec.progress import Bars
    from server.running import listen, start

    def say(line: str) -> None:
        if not args.json:
            print(line, flush=True)

    torch.set_num_threads(1)
    listen(args.host, args.port).close()  # a port in use is told now, not after the training
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with Bars() as bars:
        planted = generate(
            out / "clicks.parquet", args.rows, args.seed, progress=bars.phase("generate", args.rows)
        )
    say(f"1. {planted.rows:,} rows, {planted.requests:,} requests, {planted.clicks:,} clicks: {planted.path}")
    schema = load_schema("trivago")
    reader = open_data(planted.path, schema)
    with Bars() as bars:
        learner = Learner(
            reader,
            schema,
            default_training(schema),
            phase=bars.phase,
            progress=bars.training,
        )
        bundle = learner.learn(out / "table", replace=True)
    ceiling = planted_quality(planted.path, split_of(reader, schema)).as_dict()
    test = bundle.manifest.metrics["test"]
    say(f"2. trained {bundle.path} ({bundle.bytes:,} bytes); on the test rows, beside the ceiling that")
    say("   the generator planted:")
    for key in ("auc", "log_loss", "mrr"):
        say(f"   {key:>9} {test[key]:.4f}   planted {ceiling[key]:.4f}")
    runtime, device = best_runtime(bundle)
    plan = single_path_plan(Path("table"), bundle.name, runtime, device)
    save_plan(plan, out / "plan.json")
    say(f"3. planned {plan.paths[0].name} on {runtime}: {out / 'plan.json'}")
    rank_body, predict_body = _requests(planted.path, schema)
    (out / "rank.json").write_bytes(rank_body)
    (out / "predict.json").write_bytes(predict_body)
    server = start({"plan": out / "plan.json", "host": args.host, "port": args.port})
    with server:
        say(f"4. serving at {server.url}")
        headers, answer = _post(f"{server.url}/v1/rank", rank_body)
        seconds = time.perf_counter() - begin
        say(f"5. POST /v1/rank with {out / 'rank.json'}, answered by {headers['x-polyrec-path']}:")
        say(f"   {json.dumps(answer)}")
        if args.json:
            result = {"metrics": test, "planted": ceiling, "answer": answer, "url": server.url}
            print(json.dumps(result | {"seconds": round(seconds, 1)}), flush=True)
        if args.once:
            return 0
        say(f"\nReady after {seconds:.0f} s. It keeps serving until Ctrl-C. Try:\n")
        for line in _tries(server.url, str(out)):
            say(f"  {line}")
        # Ctrl-C reaches the server too, which drains and ends by itself
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: server.process.terminate())
        return server.process.wait()


def _requests(path: Path, schema: Schema) -> tuple[bytes, bytes]:
    """Bodies of /v1/rank and /v1/predict, from the last request of the data."""
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


def _post(url: str, body: bytes) -> tuple[Mapping[str, str], Any]:
    """(headers, parsed answer)."""
    import json
    import urllib.request

    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.headers, json.load(response)


def _tries(url: str, out: str) -> list[str]:
    return [
        f"curl -s {url}/v1/rank -d @{out}/rank.json",
        f"curl -si {url}/v1/predict -H 'X-Latency-Budget-Ms: 20' -d @{out}/predict.json",
        f"curl -s {url}/v1/paths",
        f"curl -s {url}/v2/models/dlrm",
        f"curl -s {url}/metrics | grep polyrec_request",
    ]
