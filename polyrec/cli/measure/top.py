"""`polyrec top`: a live view of a server in the terminal, from its metrics."""

from __future__ import annotations

import argparse

from polyrec.loadtest.arguments import positive_float

EXAMPLE = "polyrec top http://127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", nargs="?", default="http://127.0.0.1:8000", help="the server (default http://127.0.0.1:8000)"
    )
    parser.add_argument(
        "--interval", type=positive_float, default=2.0, metavar="SECONDS", help="refresh interval (default 2)"
    )
    parser.add_argument(
        "--model", metavar="NAME", help="model, if the server has several (default: the first)"
    )
    parser.add_argument("--once", action="store_true", help="print one interval and exit")
    parser.add_argument("--json", action="store_true", help="print one interval as JSON and exit")


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.measure.live_view import watch

    url = args.url.rstrip("/")
    return watch(url, args.interval, once=args.once, as_json=args.json, model=args.model)
