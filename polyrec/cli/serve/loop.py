"""`polyrec loop`: trains repeatedly on a server's log and publishes bundles that are not worse."""

from __future__ import annotations

import argparse

from polyrec.cli.serve.rollout_options import add_start_options
from polyrec.loadtest.arguments import duration, non_negative_int, positive_float, positive_int

EXAMPLE = "polyrec loop run --plan plan.json --log /data/log --state /data/loop --every 1h --url http://127.0.0.1:8000"
STEPS = ("check", "train", "evaluate", "publish", "canary")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    state = argparse.ArgumentParser(add_help=False)
    state.add_argument(
        "--state", required=True, metavar="DIR", help="folder of the loop's records and bundles"
    )
    calls = parser.add_subparsers(dest="call", metavar="CALL", required=True, title="calls")

    run = calls.add_parser(
        "run", parents=[state], help="run iterations until Ctrl-C; resumes an interrupted one"
    )
    run.epilog = f"example: {EXAMPLE}"
    run.add_argument("--plan", required=True, help="plan that the server serves when the loop is first run")
    run.add_argument("--log", required=True, metavar="DIR", help="prediction log of the server")
    run.add_argument("--once", action="store_true", help="run or finish one iteration now, then exit")
    _add_when(run)
    _add_held(run)
    run.add_argument_group("training").add_argument(
        "--train-options",
        default="",
        metavar="OPTIONS",
        help="options passed to `polyrec train`, in quotes: '--step-size .2 --forget-unseen 2'",
    )
    run.add_argument(
        "--keep", type=non_negative_int, default=3, help="number of earlier bundles to keep (default 3)"
    )
    _add_canary(run)

    status = calls.add_parser(
        "status", parents=[state], help="show iterations, their steps and the reasons for each outcome"
    )
    status.epilog = "example: polyrec loop status --state /data/loop"
    status.add_argument("--json", action="store_true", help="print as JSON")
    hold = calls.add_parser("hold", parents=[state], help="pause before a step until it is released")
    hold.epilog = "example: polyrec loop hold canary --state /data/loop --reason 'sale today'"
    hold.add_argument("step", choices=STEPS, help="step")
    hold.add_argument("--reason", default="by an operator", help="reason to show in the status")
    release = calls.add_parser("release", parents=[state], help="allow a held step again")
    release.epilog = "example: polyrec loop release canary --state /data/loop"
    release.add_argument("step", choices=STEPS, help="step")
    for name, what in (
        ("force", "continue the last iteration although it waits, was held back or was rolled back"),
        ("drop", "end the iteration in progress without publishing; its rows are not used again"),
    ):
        command = calls.add_parser(name, parents=[state], help=what)
        command.epilog = f"example: polyrec loop {name} --state /data/loop --iteration 7"
        command.add_argument(
            "--iteration",
            type=positive_int,
            metavar="N",
            help="refuse if the current iteration is another one (default: whichever is current)",
        )


def _add_when(run: argparse.ArgumentParser) -> None:
    when = run.add_argument_group("when")
    when.add_argument(
        "--every",
        type=duration,
        default=3600.0,
        metavar="TIME",
        help="interval between iterations (default 1h)",
    )
    when.add_argument(
        "--drift",
        type=positive_float,
        metavar="GAIN",
        help="train only once the serving model has lost this much information gain (default: always)",
    )
    when.add_argument(
        "--least-clicks",
        type=positive_int,
        default=200,
        help="minimum number of clicks in the new rows (default 200)",
    )
    when.add_argument("--since", metavar="TIME", help="first iteration: use the log's rows from this time on")
    when.add_argument(
        "--settle",
        type=duration,
        default=60.0,
        metavar="TIME",
        help="wait after the log's label window until its files are complete (default 60s)",
    )


def _add_held(run: argparse.ArgumentParser) -> None:
    held = run.add_argument_group("when a bundle is held back")
    held.add_argument(
        "--margin",
        type=positive_float,
        default=0.005,
        help="hold a bundle unless it is shown to lose no more information gain than this (default .005)",
    )
    held.add_argument(
        "--max-drop",
        type=positive_float,
        default=0.5,
        help="maximum share of its information gain that the serving model may lose at once (default .5)",
    )
    held.add_argument(
        "--max-calibration",
        type=positive_float,
        default=2.0,
        help="maximum factor between predicted and actual clicks (default 2)",
    )


def _add_canary(run: argparse.ArgumentParser) -> None:
    canary = run.add_argument_group("canary", "only with --url; bounds as for `polyrec rollout start`")
    canary.add_argument("--url", help="server that serves the plan (default: only publish bundles)")
    canary.add_argument("--model", metavar="NAME", help="model to roll out, if the server has several")
    canary.add_argument(
        "--canary-for",
        type=duration,
        default=86400.0,
        metavar="TIME",
        help="roll back if not promoted within this time (default 24h)",
    )
    add_start_options(canary, promote_after="10m")


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.serve.loop_call import run_call

    return run_call(args)
