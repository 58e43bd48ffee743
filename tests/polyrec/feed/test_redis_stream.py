"""`polyrec feed` from a real Redis to a real server."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import redis

from polyrec.cli.main import main
from polyrec.feed.feed import Feed
from polyrec.feed.redis_stream import RedisStream
from polyrec.feed.source import FeedFailed
from polyrec.models.tiers.updates.update import TableUpdate
from polyrec.models.tiers.updates.update_file import encode_update
from polyrec.server.child import ServerProcess
from tests.models.tiers.redis_server import ProtectedStore, RedisServer
from tests.polyrec.feed.updates import WIDTH, document, metrics


def test_updates_of_a_stream_are_served_and_acknowledged(
    store: RedisServer, server: ServerProcess, items: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    client = redis.Redis.from_url(store.url)
    for i in range(40):
        client.xadd("s", {"json": document(items[i], i)})
    wrong = client.xadd("s", {"json": document("not known", 1.0)})
    client.xadd("s", {"json": b"{"})
    client.xadd("s", {"json": document("new", 1.0, add=True, expires_s=3600)})
    update = {"item": TableUpdate(np.array([3]), np.zeros((1, WIDTH), np.float32), retracted=("new",))}
    client.xadd("s", {"safetensors": encode_update(update)})
    arguments = ["feed", store.url, "--stream", "s", "--url", server.url, "--once", "--most-rows", "16"]
    assert main(arguments) == 0
    assert "43 rows sent, 2 entries rejected" in capsys.readouterr().out
    rejected = client.xrange("s:rejected")
    reasons = {fields[b"rejected_id"]: fields[b"rejected_reason"].decode() for _, fields in rejected}
    assert "has no value 'not known'" in reasons[wrong]
    assert len(reasons) == 2
    pending = client.xpending("s", "polyrec")
    assert pending["pending"] == 0
    assert sum(metrics(server, "polyrec_update_rows_total").values()) == 43
    # one was added and one retracted
    assert sum(metrics(server, "polyrec_update_values_total").values()) == 2
    assert sorted(metrics(server, "polyrec_reserved_rows").values()) == [0, 3]
    assert 0 <= next(iter(metrics(server, "polyrec_update_lag_seconds").values())) < 3600
    # nothing is sent twice
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(arguments) == 0
    assert "0 rows sent, 0 entries rejected" in capsys.readouterr().out
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_unacknowledged_entries_are_sent_again(
    store: RedisServer, server: ServerProcess, items: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    client = redis.Redis.from_url(store.url)
    client.xgroup_create("again", "polyrec", "0", mkstream=True)
    client.xadd("again", {"json": document(items[0], 1.0)})
    assert client.xreadgroup("polyrec", "polyrec", {"again": ">"}, 10)
    assert main(["feed", store.url, "--stream", "again", "--url", server.url, "--once"]) == 0
    assert "1 rows sent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "offense"),
    [
        (["http://nowhere", "--stream", "s"], "must specify one of the following schemes"),
        (["redis://:secret@here:port", "--stream", "s"], "Port could not be cast"),
        (["redis://:se/cret@here", "--stream", "s"], "Port could not be cast"),
        (["STORE", "--stream", "s2", "--url", "localhost:8000"], "protocol"),
        (["STORE", "--stream", "text"], "WRONGTYPE"),
        (["STORE", "--stream", "s2", "--model", "none"], "404"),
        (["STORE", "--stream", "s2", "--most-rows", "0"], "at least one row"),
    ],
)
def test_feed_exits_with_one_line_for_a_permanent_error(
    arguments: list[str],
    offense: str,
    store: RedisServer,
    server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = redis.Redis.from_url(store.url)
    client.set("text", "no stream")
    client.xadd("s2", {"json": document("x", 1.0)})
    given = [store.url if a == "STORE" else a for a in arguments]
    url = [] if "--url" in given else ["--url", server.url]
    assert main(["feed", *given, *url, "--once"]) == 2
    reported = capsys.readouterr().err
    assert offense in reported
    assert "secret" not in reported
    assert "se/" not in reported


def losing(port: int, marker: bytes) -> int:
    """Forwards connections to a port; the first reply with the marker is lost, and its connection too."""
    listening, lost = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def pump(source: socket.socket, to: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if marker in data and source.getpeername()[1] == port and not lost.is_set():
                    lost.set()
                    break
                to.sendall(data)
        except OSError:
            pass
        for one in (source, to):
            one.close()

    def accept() -> None:
        while True:
            client = listening.accept()[0]
            store = socket.create_connection(("127.0.0.1", port))
            for pair in ((client, store), (store, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listening.getsockname()[1])


@pytest.mark.parametrize("protocol", [2, 3])
def test_entries_whose_reply_was_lost_are_sent(
    protocol: int,
    store: RedisServer,
    server: ServerProcess,
    items: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Redis has handed them to the feed, so that reading new ones alone would skip them."""
    client, stream = redis.Redis.from_url(store.url), f"lost{protocol}"
    client.xadd(stream, {"json": document(items[0], 1.0)})
    url = f"redis://127.0.0.1:{losing(store.port, b'tables')}?protocol={protocol}"
    assert main(["feed", url, "--stream", stream, "--url", server.url, "--once"]) == 0
    assert "1 rows sent" in capsys.readouterr().out
    assert client.xpending(stream, "polyrec")["pending"] == 0


def test_the_password_beside_the_url_is_the_one_that_counts(store: RedisServer) -> None:
    client = redis.Redis.from_url(store.url)
    client.config_set("requirepass", "right")
    try:
        url = store.url.replace("redis://", "redis://:wrong@")
        RedisStream.connect(url, "locked", "polyrec", "right").open()
        with pytest.raises(FeedFailed, match="invalid username-password pair"):
            RedisStream.connect(url, "locked", "polyrec").open()
    finally:
        client.config_set("requirepass", "")


@pytest.mark.parametrize("options", ["", "?protocol=3&max_connections=2&health_check_interval=5"])
def test_a_store_in_protected_mode_ends_the_feed_with_its_reason(options: str) -> None:
    store = ProtectedStore()
    source = RedisStream.connect(f"{store.url}{options}", "updates", "polyrec")
    with pytest.raises(FeedFailed, match="stream 'updates': DENIED Redis is running in protected mode"):
        source.open()
    source.close()
    store.close()


def test_a_feed_of_which_nothing_came_for_a_while_goes_on(
    store: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrec.feed.redis_stream.BLOCK_S", 0.01)
    client, sent = redis.Redis.from_url(store.url), threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        sent.set()
        return httpx.Response(200)

    def reads() -> int:
        return int(client.info("commandstats").get("cmdstat_xreadgroup", {"calls": 0})["calls"])

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        feed = Feed(RedisStream.connect(store.url, "quiet", "polyrec"), http, "http://server/")
        feed.source.open()
        before, running = reads(), threading.Thread(target=feed.run, args=(False,), daemon=True)
        running.start()
        while running.is_alive() and reads() < before + 4:
            pass
        client.xadd("quiet", {"json": document("a", 1.0)})
        arrived = running.is_alive() and sent.wait(60)
        feed.ending.set()
        running.join()
        feed.source.close()
    assert arrived


def test_no_entry_ends_the_feed_or_a_line_of_its_log(
    store: RedisServer,
    server: ServerProcess,
    items: list[str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = redis.Redis.from_url(store.url)
    client.xadd("hostile", {"x\n2026-11-26 ERROR \x1b[31mall is lost": ""})
    for characters in (10_000, 100_000):  # answered 414, and not even sent
        client.xadd("hostile", {"json": document(items[0], 1.0, path="p" * characters)})
    client.xadd("hostile", {"json": document(items[0], 1.0)})
    assert main(["feed", store.url, "--stream", "hostile", "--url", server.url, "--once"]) == 0
    assert "1 rows sent, 3 entries rejected" in capsys.readouterr().out
    lines = [record.getMessage() for record in caplog.records if record.name == "polyrec.feed"]
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_ids_that_are_no_milliseconds_are_sent(
    store: RedisServer, server: ServerProcess, items: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    client, stream = redis.Redis.from_url(store.url), "a stream with a long name, " * 4
    for id in ("1764041000000000-0", f"{2**64 - 2}-{2**64 - 2}", f"{2**64 - 1}-{2**64 - 1}"):
        client.xadd(stream, {"json": document(items[0], 1.0)}, id=id)
    assert main(["feed", store.url, "--stream", stream, "--url", server.url, "--once"]) == 0
    assert "3 rows sent, 0 entries rejected" in capsys.readouterr().out


def test_updates_of_two_streams_with_equal_ids_are_both_served(
    store: RedisServer, server: ServerProcess, items: list[str]
) -> None:
    """As of two streams that are written in one millisecond, or of one that was made anew."""
    client, stream = redis.Redis.from_url(store.url), "a stream of updates with quite a long name "
    for name, item in (("of users", items[0]), ("of items", items[1]), ("of items", items[2])):
        client.delete(stream + name)
        client.xadd(stream + name, {"json": document(item, 1.0)}, id="1764041000000-0")
        before = sum(metrics(server, "polyrec_update_rows_total").values())
        assert main(["feed", store.url, "--stream", stream + name, "--url", server.url, "--once"]) == 0
        assert sum(metrics(server, "polyrec_update_rows_total").values()) == before + 1


def refuse_writes(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", 1)


def accept_writes(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", 0)


def make_anew(client: redis.Redis) -> None:
    client.xadd("passes", {"json": document("b", 2.0)})


@pytest.mark.parametrize(
    ("fail", "recover", "offense"),
    [
        (refuse_writes, accept_writes, "NOREPLICAS"),
        (redis.Redis.flushall, make_anew, "NOGROUP"),
    ],
)
def test_a_store_that_refuses_for_a_while_ends_no_feed(
    fail: Callable[[redis.Redis], object],
    recover: Callable[[redis.Redis], object],
    offense: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = RedisServer(tmp_path)
    client = redis.Redis.from_url(store.url)
    client.xadd("passes", {"json": document("a", 1.0)})

    class Recovering(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "trying again" in record.getMessage():
                recover(client)

    handler = Recovering()
    logging.getLogger("polyrec.feed").addHandler(handler)
    try:
        with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200))) as http:
            feed = Feed(RedisStream.connect(store.url, "passes", "polyrec"), http, "http://server/")
            feed.source.open()
            fail(client)
            feed.run(once=True)
    finally:
        logging.getLogger("polyrec.feed").removeHandler(handler)
        store.kill()
    assert feed.sent == 1
    lines = [record.getMessage() for record in caplog.records]
    assert offense in lines[0]
    assert lines[-1] == "the source answers again"
