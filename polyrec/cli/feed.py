"""`polyrec feed`: sends a stream of row updates to a server."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = "polyrec feed redis://127.0.0.1:6379 --stream updates --url http://127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "store",
        help="URL of the Redis server, whose password POLYREC_STORE_PASSWORD may have, or of Kafka's "
        "brokers, kafka://HOST:PORT[,HOST:PORT...]",
    )
    parser.add_argument("--stream", required=True, help="key of the stream of updates, or topic")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default: %(default)s)")
    parser.add_argument(
        "--group",
        default="polyrec",
        help="consumer group that remembers what was sent; one for each server (default: %(default)s)",
    )
    parser.add_argument("--model", help="one of several models of the server")
    parser.add_argument("--path", help="path whose rows change, where several bundles have rows in tiers")
    parser.add_argument(
        "--most-rows",
        type=int,
        default=1000,
        help="rows of a call; entries are merged (default: %(default)s)",
    )
    parser.add_argument(
        "--kafka-config",
        type=Path,
        metavar="FILE",
        help="settings of librdkafka, such as of TLS and SASL, a line NAME=VALUE each",
    )
    parser.add_argument("--once", action="store_true", help="end when the stream has no more entries")


def run(args: argparse.Namespace) -> int:
    from polyrec.feed.run import run_feed

    return run_feed(args)
