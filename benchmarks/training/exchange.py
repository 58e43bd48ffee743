"""Measures what two workers exchange and how fast they train, over links of several speeds.

    sudo python -m benchmarks.training.exchange --trivago ../shared/data/trivago/impressions.parquet \\
        --json docs/results/training-exchange.json

Each worker is a process with one torch thread in its own network namespace. A veth pair connects them. The
token bucket of `tc` limits each end's rate; since kernels may lack netem, a link's delay is a wait before
every collective call. All forms train the same rows: each takes every window once, in turns with the others,
after one window that is not counted. Bytes are those sent by worker 0's interface. Prints the tables of
docs/results/training-exchange.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.command import command_parser, save, today
from benchmarks.training.torchrec_steps import TorchRecSteps
from benchmarks.training.zipf_clicks import generate_zipf, zipf_schema
from polyrec.loadtest.machine import processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, fit_splitter
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile, default_recipe_file
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Step, Stepper
from polyrec.models.training.trainer import start_at_base_rate
from polyrec.models.training.workers.group import WorkerGroup
from polyrec.models.training.workers.settings import Scheme, WorkerSettings
from polyrec.models.training.workers.stage import ShardedStage
from polyrec.models.training.workers.workers import Workers
from polyrec.report.text import markdown_table

T = TypeVar("T")

WIDTH = 64
LINKS = {"as it is": None, "10 Gbit/s": "10gbit", "1 Gbit/s": "1gbit"}
DELAY_S = 1e-4
FORMS: dict[str, tuple[Scheme, bool]] = {
    "baseline": ("plain", False),
    "FAE": ("fae", False),
    "Hotline": ("hotline", False),
    "RecD": ("plain", True),
    "FAE and RecD": ("fae", True),
    "Hotline and RecD": ("hotline", True),
}
TORCHREC = "TorchRec"
"""Form of the generated data where TorchRec is installed: benchmarks/training/torchrec_steps.py."""
SPACES = ("polyrec-worker-0", "polyrec-worker-1")
INTERFACES = ("polyrec0", "polyrec1")
ADDRESSES = ("10.231.7.1", "10.231.7.2")


def zipf_training(batch_rows: int, precision: str) -> RecipeFile:
    shape = Architecture(width=WIDTH, bottom=(256,), top=(256,), interaction="dot")
    recipe = Recipe(batch_rows=batch_rows, by_request=True, hide=0.0)
    return RecipeFile(architecture=shape, recipe=recipe).with_recipe({"precision": precision})


class DelayedGroup(WorkerGroup):
    """Group whose collective calls wait first, to simulate a link's delay."""

    delay_s = 0.0

    def _run(self, call: Callable[[], T], sent: int) -> T:
        if self.delay_s:
            time.sleep(self.delay_s)
        return super()._run(call, sent)


def sent_on(interface: str) -> int:
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def shape(interface: str, rate: str | None) -> None:
    """Limits the sending rate of this namespace's interface; None: no limit."""
    if rate is None:
        subprocess.run(["tc", "qdisc", "del", "dev", interface, "root"], stderr=subprocess.DEVNULL)
        return
    limit = ["tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
    subprocess.run(["tc", "qdisc", "replace", "dev", interface, "root", *limit], check=True)


def prepared(name: str, data: Path, args: argparse.Namespace) -> tuple[Learner, Encoder, EncodedRows]:
    """Returns learner, encoder and encoded training rows of a data set."""
    if name == "trivago":
        schema = load_schema("trivago")
        changes = {"batch_rows": args.batch_rows, "precision": args.precision}
        training = default_recipe_file(schema).with_recipe(changes)
    else:
        schema, training = zipf_schema(args.request_rows), zipf_training(args.batch_rows, args.precision)
    reader = open_data(data, schema)
    learner = Learner(reader, schema, training)
    splitter = fit_splitter(reader, schema)
    encoder = learner.encoder_of(splitter, (TRAIN,))
    return learner, encoder, encode(reader, encoder, splitter, (TRAIN,))


def work(args: argparse.Namespace) -> None:
    """Trains as one of the two workers; worker 0 prints a JSON line per measurement."""
    torch.set_num_threads(1)
    retain_freed_memory()
    learner, encoder, data = prepared(args.name, args.data, args)
    rank = int(os.environ["RANK"])
    group = DelayedGroup(*_joined(WorkerGroup.join()))
    size = args.steps * args.batch_rows
    window = Rows(data, data.select(TRAIN)[:size])
    taken: dict[str, Iterator[Step]] = {}
    stages: dict[str, ShardedStage] = {}
    total = sum(v.rows for v in encoder.vocabularies.values())
    hot_bytes = int(args.hot_share * total) * 4 * learner.training.architecture.width
    for form in args.forms:
        if form == TORCHREC:
            taken[form] = iter(TorchRecSteps(learner, encoder, window, group))
            continue
        scheme, distinct = FORMS[form]
        workers = Workers(group, WorkerSettings(scheme, distinct, hot_bytes))
        model = workers.sharded(learner.initial_model(encoder), encoder.vocabularies)
        assert isinstance(model.stage, ShardedStage)
        stages[form] = model.stage
        start_at_base_rate(model, window.base_rate)
        taken[form] = iter(Stepper(model, window, learner.recipe, 10**6, workers=workers))
    settings: list[tuple[str, int]] = [("as it is", -1)]
    settings += [(link, r) for link in args.links for r in range(args.rounds)]
    for link, round_ in settings:
        shape(INTERFACES[rank], LINKS[link])
        group.delay_s = DELAY_S if LINKS[link] else 0.0
        for form in args.forms:
            rows = steps = hot = 0
            loss = 0.0
            group.counts([0] * group.size, torch.device("cpu"))
            sent, wire, cpu = group.sent_bytes, sent_on(INTERFACES[rank]), time.process_time()
            begin = time.perf_counter()
            while rows < window.size:
                step = next(taken[form])
                rows, steps, loss = rows + step.rows, steps + 1, step.loss
                hot += form in stages and stages[form].local
            seconds = time.perf_counter() - begin
            found = {
                "data": args.name,
                "link": link,
                "round": round_,
                "form": form,
                "rows_per_s": rows / seconds,
                "cpu_per_s": (time.process_time() - cpu) / seconds,
                "counted_bytes_per_row": (group.sent_bytes - sent) / (rows / group.size),
                "wire_bytes_per_row": (sent_on(INTERFACES[rank]) - wire) / (rows / group.size),
                "steps": steps,
                "hot_steps": hot,
                "loss": loss,
            }
            if rank == 0 and round_ >= 0:
                print(json.dumps(found), flush=True)
    group.close()


def _joined(group: WorkerGroup) -> tuple[int, int]:
    return group.rank, group.size


@contextmanager
def linked() -> Iterator[None]:
    """Sets up two network namespaces connected by a veth pair; needs root."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for space in SPACES:
            ip("netns", "add", space)
        own, peer = (["name", i, "netns", s] for i, s in zip(INTERFACES, SPACES, strict=True))
        ip("link", "add", *own, "type", "veth", "peer", *peer)
        for space, interface, address in zip(SPACES, INTERFACES, ADDRESSES, strict=True):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", interface)
            ip("-n", space, "link", "set", interface, "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL)


def measure(name: str, data: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs both workers on one data set; returns the measurements."""
    command = [sys.executable, "-m", "benchmarks.training.exchange", "--name", name, "--data", str(data)]
    for key in ("batch_rows", "steps", "rounds", "request_rows", "hot_share", "precision"):
        command += [f"--{key.replace('_', '-')}", str(getattr(args, key))]
    command += ["--forms", *args.forms, "--links", *args.links]
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": ADDRESSES[0],
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
    }
    with linked():
        started = [
            subprocess.Popen(
                ["ip", "netns", "exec", SPACES[rank], *command],
                env=environment | {"RANK": str(rank), "GLOO_SOCKET_IFNAME": INTERFACES[rank]},
                stdout=subprocess.PIPE if rank == 0 else None,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            assert started[0].stdout
            found = []
            for line in started[0].stdout:
                if line.startswith("{"):
                    found.append(json.loads(line))
                print(line.rstrip(), file=sys.stderr, flush=True)
            if any(process.wait() for process in started):
                raise SystemExit("a worker failed")
            return found
        finally:
            for process in started:
                process.kill()


def table(found: list[dict[str, Any]], forms: list[str], links: list[str]) -> str:
    """Returns a Markdown table: by form, bytes per row and the median rows/s on every link."""

    def values(form: str, key: str, link: str | None = None) -> list[float]:
        return [f[key] for f in found if f["form"] == form and link in (None, f["link"])]

    rows = []
    base = statistics.median(values(forms[0], "wire_bytes_per_row"))
    for form in forms:
        sent = statistics.median(values(form, "wire_bytes_per_row"))
        cells = []
        for link in links:
            rates = values(form, "rows_per_s", link)
            rate = statistics.median(rates)
            ratios = [a / b for a, b in zip(rates, values(forms[0], "rows_per_s", link), strict=True)]
            cells.append(f"{rate:,.0f} ({statistics.median(ratios):.2f})")
        rows.append([form, f"{sent:,.0f}", f"{sent / base:.2f}", *cells])
    head = ["", "bytes a row", "of the baseline's", *(f"{link}: rows/s" for link in links)]
    return "\n".join(markdown_table(head, rows))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--trivago", type=Path, help="impressions.parquet, to train on as well")
    parser.add_argument("--rows", type=int, default=110_000, help="of the generated data; 0: none")
    parser.add_argument("--request-rows", type=int, default=8, help="of the generated data")
    parser.add_argument("--batch-rows", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=12, help="of a window")
    parser.add_argument(
        "--hot-share", type=float, default=0.25, help="of rows that FAE and Hotline replicate"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--forms", nargs="+", choices=[*FORMS, TORCHREC], default=[*FORMS])
    parser.add_argument("--links", nargs="+", choices=LINKS, default=[*LINKS])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.name:
        work(args)
        return
    # so that workers and namespaces go when the command is ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        if args.rows:
            data = Path(folder) / "zipf.parquet"
            generate_zipf(data, args.rows, args.request_rows)
            runs += measure("zipf", data, args)
        if args.trivago:
            args.forms = [form for form in args.forms if form != TORCHREC]
            runs += measure("trivago", args.trivago.resolve(), args)
    for name in dict.fromkeys(run["data"] for run in runs):
        of_data = [run for run in runs if run["data"] == name]
        forms = [*dict.fromkeys(run["form"] for run in of_data)]
        print(f"\n{name}\n\n{table(of_data, forms, args.links)}")
    if args.json:
        result = {"machine": processor(), "date": today()}
        keys = ("batch_rows", "request_rows", "hot_share", "precision", "steps")
        options = {key: getattr(args, key) for key in keys}
        save(args.json, {**result, **options, "runs": runs})


if __name__ == "__main__":
    main()
