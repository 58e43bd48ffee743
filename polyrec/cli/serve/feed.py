"""`polyrec feed`: sends a stream of row updates to a server."""

from __future__ import annotations

import argparse
from pathlib import Path

from polyrec.feed.source import MOST_ROWS

EXAMPLE = "polyrec feed redis://127.0.0.1:6379 --stream updates --url http://127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "store",
        help="URL of the Redis server (password: variable POLYREC_STORE_PASSWORD), or of Kafka brokers, "
        "kafka://HOST:PORT[,HOST:PORT...]",
    )
    parser.add_argument("--stream", required=True, help="key of the Redis stream of updates, or Kafka topic")
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="URL of the server (default: %(default)s)"
    )
    parser.add_argument(
        "--group",
        default="polyrec",
        help="consumer group that tracks what was sent; use one per server (default: %(default)s)",
    )
    parser.add_argument("--model", help="model, if the server has several")
    parser.add_argument("--path", help="path whose rows to update, if several bundles take updates")
    parser.add_argument(
        "--most-rows",
        type=int,
        default=MOST_ROWS,
        help="maximum rows per call; entries are merged up to it (default: %(default)s)",
    )
    parser.add_argument(
        "--kafka-config",
        type=Path,
        metavar="FILE",
        help="librdkafka settings, such as TLS and SASL, one NAME=VALUE per line",
    )
    parser.add_argument("--once", action="store_true", help="exit when the stream has no more entries")


def run(args: argparse.Namespace) -> int:
    from polyrec.feed.run import run_feed

    return run_feed(args)
