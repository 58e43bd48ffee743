"""A feed's calls: which answers of the server it retries, and what it sends together."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest
import redis

from polyrec.cli.main import main
from polyrec.feed.feed import GATHER_S, Feed
from polyrec.feed.redis_stream import RedisStream
from polyrec.feed.source import FeedFailed
from polyrec.server.child import ServerProcess
from tests.models.tiers.redis_server import RedisServer
from tests.polyrec.feed.conftest import TOKEN
from tests.polyrec.feed.updates import document, metrics


def test_a_feed_waits_for_its_server(
    store: RedisServer,
    server: ServerProcess,
    items: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first calls find no server at the port; the feed continues once there is one, and says so."""
    client = redis.Redis.from_url(store.url)
    client.xadd("waits", {"json": document(items[0], 1.0)})
    actual, asked = httpx.Client.post, threading.Event()

    def post(self: httpx.Client, url: str, **given: Any) -> httpx.Response:
        if not asked.is_set():
            asked.set()
            raise httpx.ConnectError("Connection refused")
        return actual(self, url, **given)

    monkeypatch.setattr(httpx.Client, "post", post)
    assert main(["feed", store.url, "--stream", "waits", "--url", server.url, "--once"]) == 0
    assert client.xpending("waits", "polyrec")["pending"] == 0
    lines = [record.getMessage() for record in caplog.records if record.name == "polyrec.feed"]
    assert "Connection refused" in lines[0]
    assert lines[1] == "the server takes updates again"


def test_entries_after_one_unsent_at_shutdown_are_not_sent(store: RedisServer) -> None:
    client = redis.Redis.from_url(store.url)
    for content in (document("a", 1.0), b"{", document("b", 2.0)):
        client.xadd("ends", {"json": content})
    calls = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        feed.ending.set()
        return httpx.Response(503 if len(calls) == 1 else 200, json={"error": "later"})

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        feed = Feed(RedisStream(client, "ends", "polyrec"), http, "http://server/")
        feed.source.open()
        feed.run(once=True)
    assert len(calls) == 1
    assert (feed.sent, client.xpending("ends", "polyrec")["pending"]) == (0, 3)


@pytest.mark.parametrize(("status", "offense"), [(308, "308"), (401, "401")])
def test_an_answer_that_stays_the_same_ends_the_feed(status: int, offense: str, store: RedisServer) -> None:
    client, stream = redis.Redis.from_url(store.url), f"answer{status}"
    client.xadd(stream, {"json": document("a", 1.0)})
    transport = httpx.MockTransport(lambda request: httpx.Response(status))
    with httpx.Client(transport=transport) as http:
        feed = Feed(RedisStream(client, stream, "polyrec"), http, "http://server/")
        feed.source.open()
        with pytest.raises(FeedFailed, match=offense):
            feed.run(once=True)


def test_an_answer_that_passes_ends_no_feed(store: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """408: the feed or the network paused amid a body. Damaged gzip: a proxy that restarts."""
    client = redis.Redis.from_url(store.url)
    client.xadd("passes", {"json": document("a", 1.0)})
    damaged = {"content-encoding": "gzip"}
    passing = [
        httpx.Response(408),
        httpx.Response(429),
        httpx.Response(502, headers=damaged, stream=httpx.ByteStream(b"no gzip")),
    ]
    with httpx.Client(
        transport=httpx.MockTransport(lambda _: (passing or [httpx.Response(200)]).pop(0))
    ) as http:
        feed = Feed(RedisStream(client, "passes", "polyrec"), http, "http://server/")
        feed.source.open()
        feed.run(once=True)
    assert (feed.sent, client.xpending("passes", "polyrec")["pending"]) == (1, 0)
    assert caplog.text.count("did not take an update, trying again") == 3


def test_an_entry_larger_than_a_call_is_rejected(
    store: RedisServer,
    server: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("polyrec.feed.feed.MAX_BODY_BYTES", 300)
    client = redis.Redis.from_url(store.url)
    client.xadd("large", {"json": document("a" * 300, 1.0, add=True)})
    assert main(["feed", store.url, "--stream", "large", "--url", server.url, "--once"]) == 0
    assert "0 rows sent, 1 entries rejected" in capsys.readouterr().out


def test_entries_that_arrive_one_by_one_are_gathered(
    store: RedisServer, server: ServerProcess, items: list[str]
) -> None:
    """Each call costs the server a fixed time, so a call is not made for each entry."""
    client = redis.Redis.from_url(store.url)
    before = sum(metrics(server, "polyrec_updates_total").values())
    with httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        url = f"{server.url}/v1/admin/embeddings"
        feed = Feed(RedisStream.connect(store.url, "one by one", "polyrec"), http, url)
        feed.source.open()
        began = time.monotonic()
        thread = threading.Thread(target=feed.run, args=(False,))
        thread.start()
        for i in range(100):
            client.xadd("one by one", {"json": document(items[0], i)})
            time.sleep(0.01)
        while feed.sent < 100 and thread.is_alive() and time.monotonic() - began < 60:
            time.sleep(0.01)
        took_s = time.monotonic() - began
        feed.ending.set()
        thread.join()
    calls = sum(metrics(server, "polyrec_updates_total").values()) - before
    assert feed.sent == 100
    assert 1 <= calls <= took_s / GATHER_S + 2
