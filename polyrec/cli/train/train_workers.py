"""Defines the options of `polyrec train` for several workers; starts and joins the workers."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from polyrec.loadtest.arguments import positive_int

if TYPE_CHECKING:
    from polyrec.models.training.workers.settings import WorkerSettings
    from polyrec.models.training.workers.workers import Workers

HOT_MB = 256


def add_worker_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers",
        type=positive_int,
        metavar="N",
        help="train with N processes on this machine, each with its part of the rows; omit it under "
        "torchrun, which starts the processes",
    )
    group.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="exchange and replicate rows as in this plan made by `polyrec plan --train`; replaces "
        "--exchange, --every-lookup and --hot-mb",
    )
    group.add_argument(
        "--exchange",
        choices=["plain", "fae", "hotline"],
        help="plain: exchange rows in every step; fae: also draw batches of popular ids, which need no "
        "exchange; hotline: exchange while the popular rows of the batch are computed (default plain)",
    )
    group.add_argument(
        "--every-lookup",
        action="store_true",
        help="exchange a row for every lookup instead of once per batch (a baseline)",
    )
    group.add_argument(
        "--hot-mb",
        type=positive_int,
        metavar="MB",
        help=f"size of the popular rows on every worker, with fae and hotline (default {HOT_MB})",
    )
    group.add_argument(
        "--follow-popularity",
        action="store_true",
        help="with fae and hotline, replicate the rows that are popular during training instead of those "
        "with the highest counts in the calibration",
    )


def refuse_with_workers(args: argparse.Namespace) -> None:
    """Raises PolyrecError for options that are not supported with several workers."""
    from polyrec.models.errors import PolyrecError

    if not has_several_workers(args):
        if args.plan:
            raise PolyrecError(
                "--plan needs several workers: start them with --workers or torchrun; for a single worker, "
                "set --memory to its node's memory for rows"
            )
        return
    for flag, given in (
        ("--checkpoint", args.checkpoint),
        ("--search", args.search),
        ("--device", args.device != "cpu"),
        ("--representation", args.representation not in (None, "table")),
    ):
        if given:
            raise PolyrecError(f"several workers train tables without {flag}: omit {flag}")


def has_several_workers(args: argparse.Namespace) -> bool:
    """Returns whether there are several workers, by the options or by torchrun's environment."""
    return (args.workers or 1) > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def workers_of(args: argparse.Namespace) -> Iterator[Workers | None]:
    """Starts the other workers, unless torchrun did, and joins their group; yields None for a single
    worker.
    """
    if not has_several_workers(args):
        yield None
        return
    from polyrec.models.training.workers.group import WorkerGroup
    from polyrec.models.training.workers.workers import Workers

    settings = planned_settings(args) if args.plan else settings_of(args)
    started = []
    if "RANK" not in os.environ:
        environment = local_environment(args.workers)
        spawn = get_context("spawn")
        for rank in range(1, args.workers):
            started.append(spawn.Process(target=_assist, args=(args, environment | {"RANK": str(rank)})))
            started[-1].start()
        os.environ.update(environment | {"RANK": "0"})
    try:
        with Workers(WorkerGroup.join(), settings) as workers:
            yield workers
        for process in started:
            process.join()
    finally:
        for process in started:
            process.terminate()
            process.join()
        if started:
            for name in environment | {"RANK": ""}:
                os.environ.pop(name, None)


def settings_of(args: argparse.Namespace) -> WorkerSettings:
    """Returns the settings that the options specify."""
    from polyrec.models.training.workers.settings import WorkerSettings

    hot_mb = HOT_MB if args.hot_mb is None else args.hot_mb
    return WorkerSettings(
        args.exchange or "plain", not args.every_lookup, hot_mb * 2**20, args.follow_popularity
    )


def planned_settings(args: argparse.Namespace) -> WorkerSettings:
    """Returns the settings of --plan's training plan. Raises PolyrecError if they do not fit."""
    from polyrec.models.errors import PolyrecError
    from polyrec.models.training.workers.settings import Scheme, WorkerSettings
    from polyrec.planner.training.plan_file import load_proposal

    for flag in ("exchange", "every_lookup", "hot_mb", "follow_popularity"):
        if getattr(args, flag):
            raise PolyrecError(
                f"--{flag.replace('_', '-')} is set by the plan of --plan: omit one of the two"
            )
    plan = load_proposal(args.plan)
    # torchrun sets both; some containers set only WORLD_SIZE=1
    workers = int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else args.workers
    if plan.nodes != workers:
        raise PolyrecError(f"plan '{args.plan}' is for {plan.nodes} nodes, not for {workers} workers")
    for place in ("slow memory", "disk"):
        rows = sum(places.get(place, 0) for places in plan.tables.values())
        if rows:
            raise PolyrecError(
                f"plan '{args.plan}' has {rows:,} rows in {place}: several workers hold all rows in memory; "
                "plan for nodes without it"
            )
    scheme: Scheme = plan.form if plan.form in ("fae", "hotline") else "plain"
    replicated = {name: places.get("replicated", 0) for name, places in plan.tables.items()}
    return WorkerSettings(scheme, plan.form != "every lookup", replicated=replicated)


def local_environment(size: int) -> dict[str, str]:
    """Returns the environment of a group of processes on this machine, except for RANK."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {"WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo", **address}


def _assist(args: argparse.Namespace, environment: dict[str, str]) -> None:
    """Runs the command as another worker; reports errors as single lines, as worker 0 does."""
    os.environ.update(environment)
    from polyrec.models.errors import PolyrecError

    try:
        args.run(args)
    except PolyrecError as e:
        sys.exit(f"polyrec: error of worker {environment['RANK']}: {e}")
