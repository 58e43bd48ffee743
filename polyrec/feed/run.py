"""Runs `polyrec feed` until a signal, or with --once until the source's end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
from collections.abc import Callable
from importlib.util import find_spec
from urllib.parse import urlsplit

import httpx

from polyrec.client.admin import TOKEN
from polyrec.client.connection import verifies
from polyrec.feed.feed import Feed
from polyrec.feed.source import FeedFailed, Source, SourceAway
from polyrec.models.text import public
from polyrec.server.app.logs import log_to_stderr

STORE_PASSWORD = "POLYREC_STORE_PASSWORD"
CALL_S = 60.0
"""Longest wait for the server's answer."""


def open_source(args: argparse.Namespace) -> Source:
    """Returns the source that the arguments specify, not yet opened. Raises FeedFailed."""
    if args.store.startswith("kafka://"):
        brokers = urlsplit(args.store)
        if not brokers.netloc or "@" in brokers.netloc or brokers.path.strip("/") or brokers.query:
            raise FeedFailed(
                f"'{public(args.store)}': brokers are kafka://HOST:PORT[,HOST:PORT...]; the topic "
                "is --stream, passwords are in the file of --kafka-config"
            )
        if find_spec("confluent_kafka") is None:
            raise FeedFailed("Kafka's client is not installed: pip install 'polyrec[kafka]'")
        from polyrec.feed.kafka_topic import KafkaTopic, read_settings

        settings = read_settings(args.kafka_config) if args.kafka_config else {}
        return KafkaTopic(brokers.netloc, args.stream, args.group, settings)
    if args.kafka_config:
        raise FeedFailed("--kafka-config is for kafka://")
    from polyrec.feed.redis_stream import RedisStream

    return RedisStream.connect(args.store, args.stream, args.group, os.environ.get(STORE_PASSWORD))


def end_at_signal(ending: threading.Event) -> Callable[[int, object], None]:
    """Returns a signal handler that sets an event for which the interrupted code may be waiting."""
    # in another thread, because the interrupted wait may hold the event's lock, which is not reentrant
    return lambda *_: threading.Thread(target=ending.set).start()


def run_feed(args: argparse.Namespace) -> int:
    """Runs the feed and returns the exit status. Raises FeedFailed."""
    log_to_stderr("info")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    token = os.environ.get(TOKEN)
    if not token:
        raise FeedFailed(f"the variable {TOKEN} is not set; set it to the server's admin token")
    if args.most_rows < 1:
        raise FeedFailed(f"--most-rows {args.most_rows}: a call has at least one row")
    source = open_source(args)
    call_url = f"{args.url.rstrip('/')}/v1/{f'models/{args.model}/' if args.model else ''}admin/embeddings"
    headers = {"Authorization": f"Bearer {token}"}
    verify = verifies(args.url)
    with httpx.Client(headers=headers, timeout=CALL_S, trust_env=False, verify=verify) as client:
        feed = Feed(source, client, call_url, args.path, args.most_rows)
        before = {n: signal.signal(n, end_at_signal(feed.ending)) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            source.open()
            feed.run(args.once)
        except SourceAway as e:
            raise FeedFailed(str(e)) from None
        finally:
            source.close()
            for number, handler in before.items():
                signal.signal(number, handler)
    print(f"{feed.sent:,} rows sent, {feed.rejected:,} entries rejected")
    return 0
