"""`polyrec feed` from a real Redis to a real server."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import redis

from polyrec.cli.feed_run import Entry, Feed, FeedFailed, joined, merged, parse_entry
from polyrec.cli.main import main
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.reserve import reserve
from polyrec.models.tiers.updates.update import TableUpdate, UpdateError
from polyrec.models.tiers.updates.update_file import encode_update
from polyrec.planner.plan import save_plan
from polyrec.server.child import ServerProcess, start
from tests.models.tiers.redis_server import RedisServer
from tests.server.placing import placed_plan

TOKEN = "a token of sixteen and more"
WIDTH = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def server(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    model, encoder = reserve(bundle, {"item": 3})
    out = write_bundle(folder / "bundle", model, bundle.manifest.representation, encoder, {}, {})
    save_plan(placed_plan(load_bundle(out.path), folder), folder / "plan.json")
    with start({"plan": folder / "plan.json", "admin_token": TOKEN, "drain_grace_s": 0}) as child:
        yield child


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYREC_ADMIN_TOKEN", TOKEN)


def document(value: str, number: float, **options: Any) -> bytes:
    return json.dumps(
        {"tables": {"item": {"values": [value], "rows": [[number] * WIDTH]}}, **options}
    ).encode()


def metrics(server: ServerProcess, name: str) -> dict[str, float]:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)
    }


def test_updates_of_a_stream_are_served_and_acknowledged(
    store: RedisServer, server: ServerProcess, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    values = bundle.encoder.vocabularies["item"].values
    assert values is not None
    client = redis.Redis.from_url(store.url)
    for i in range(40):
        client.xadd("s", {"json": document(values[i].as_py(), i)})
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


def test_what_was_read_and_not_acknowledged_is_sent_again(
    store: RedisServer, server: ServerProcess, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    client = redis.Redis.from_url(store.url)
    values = bundle.encoder.vocabularies["item"].values
    assert values is not None
    client.xgroup_create("again", "polyrec", "0", mkstream=True)
    client.xadd("again", {"json": document(values[0].as_py(), 1.0)})
    assert client.xreadgroup("polyrec", "polyrec", {"again": ">"}, 10)
    assert main(["feed", store.url, "--stream", "again", "--url", server.url, "--once"]) == 0
    assert "1 rows sent" in capsys.readouterr().out


def test_a_feed_waits_for_its_server(
    store: RedisServer, server: ServerProcess, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first calls find no server at the port; the feed continues once there is one."""
    client = redis.Redis.from_url(store.url)
    values = bundle.encoder.vocabularies["item"].values
    assert values is not None
    client.xadd("waits", {"json": document(values[0].as_py(), 1.0)})
    actual, asked = httpx.Client.post, threading.Event()

    def post(self: httpx.Client, url: str, **given: Any) -> httpx.Response:
        if not asked.is_set():
            asked.set()
            raise httpx.ConnectError("Connection refused")
        return actual(self, url, **given)

    monkeypatch.setattr(httpx.Client, "post", post)
    begun = time.monotonic()
    assert main(["feed", store.url, "--stream", "waits", "--url", server.url, "--once"]) == 0
    assert time.monotonic() > begun
    assert client.xpending("waits", "polyrec")["pending"] == 0


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
def test_what_cannot_go_on_ends_with_a_line(
    arguments: list[str],
    offense: str,
    store: RedisServer,
    server: ServerProcess,
    bundle: Bundle,
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


def entry(id: int, names: list[str], number: float, **options: str) -> Entry:
    rows = np.full((len(names), WIDTH), number, np.float32)
    return Entry(f"{id}-0", options, {"item": TableUpdate(np.empty(0, np.int64), rows, names)})


def test_merged_entries_keep_their_order_and_their_options() -> None:
    entries = [entry(i, [f"v{i % 3}"], i) for i in range(7)]
    entries += [entry(7, ["w"], 7, add="true"), entry(8, ["x"], 8, add="true"), entry(9, ["y"], 9)]
    gone = Entry("10-0", {}, {"item": TableUpdate.retraction(("y",))})
    runs = list(merged([*entries, gone, entry(11, ["y"], 11)], 5))
    assert [[e.id for e in run] for run in runs] == [
        ["0-0", "1-0", "2-0", "3-0", "4-0"],
        ["5-0", "6-0"],
        ["7-0", "8-0"],
        ["9-0"],
        ["10-0"],
        ["11-0"],
    ]
    one = joined(runs[0])["item"]
    assert one.names == ["v0", "v1", "v2", "v0", "v1"]
    assert one.values[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("fields", "offense"),
    [
        ({b"text": b"x"}, "one field `json` or `safetensors`"),
        ({b"json": b"{}", b"add": b"true"}, "one field `json` or `safetensors`"),
        ({b"json": b'{"file": "/etc/passwd"}'}, "an entry has `tables`"),
        ({b"json": b'{"tables": {}, "key": "k"}'}, "neither `file`, `key` nor `time`"),
        ({b"safetensors": b"x"}, "is not safetensors"),
    ],
)
def test_an_entry_that_is_no_update_is_reported(fields: dict[bytes, bytes], offense: str) -> None:
    with pytest.raises(UpdateError, match=offense):
        parse_entry("1-0", fields)


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
    bundle: Bundle,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Redis has handed them to the feed, so that reading new ones alone would skip them."""
    values = bundle.encoder.vocabularies["item"].values
    assert values is not None
    client, stream = redis.Redis.from_url(store.url), f"lost{protocol}"
    client.xadd(stream, {"json": document(values[0].as_py(), 1.0)})
    url = f"redis://127.0.0.1:{losing(store.port, b'tables')}?protocol={protocol}"
    assert main(["feed", url, "--stream", stream, "--url", server.url, "--once"]) == 0
    assert "1 rows sent" in capsys.readouterr().out
    assert client.xpending(stream, "polyrec")["pending"] == 0


def test_nothing_is_sent_after_what_the_end_kept_from_being_sent(store: RedisServer) -> None:
    client = redis.Redis.from_url(store.url)
    for content in (document("a", 1.0), b"{", document("b", 2.0)):
        client.xadd("ends", {"json": content})
    calls = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        feed.ending.set()
        return httpx.Response(503 if len(calls) == 1 else 200, json={"error": "later"})

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        feed = Feed(client, "ends", "polyrec", http, "http://server/")
        feed.open()
        feed.run(once=True)
    assert len(calls) == 1
    assert (feed.sent, client.xpending("ends", "polyrec")["pending"]) == (0, 3)


@pytest.mark.parametrize(("status", "offense"), [(308, "308"), (401, "401")])
def test_an_answer_that_stays_the_same_ends_the_feed(status: int, offense: str, store: RedisServer) -> None:
    client, stream = redis.Redis.from_url(store.url), f"answer{status}"
    client.xadd(stream, {"json": document("a", 1.0)})
    transport = httpx.MockTransport(lambda request: httpx.Response(status))
    with httpx.Client(transport=transport) as http:
        feed = Feed(client, stream, "polyrec", http, "http://server/")
        feed.open()
        with pytest.raises(FeedFailed, match=offense):
            feed.run(once=True)


def test_an_entry_larger_than_a_call_is_rejected(
    store: RedisServer,
    server: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("polyrec.cli.feed_run.MAX_BODY_BYTES", 300)
    client = redis.Redis.from_url(store.url)
    client.xadd("large", {"json": document("a" * 300, 1.0, add=True)})
    assert main(["feed", store.url, "--stream", "large", "--url", server.url, "--once"]) == 0
    assert "0 rows sent, 1 entries rejected" in capsys.readouterr().out


def test_ids_that_are_no_milliseconds_are_sent(
    store: RedisServer, server: ServerProcess, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    values = bundle.encoder.vocabularies["item"].values
    assert values is not None
    client, stream = redis.Redis.from_url(store.url), "a stream with a long name, " * 4
    for id in ("1764041000000000-0", f"{2**64 - 2}-{2**64 - 2}", f"{2**64 - 1}-{2**64 - 1}"):
        client.xadd(stream, {"json": document(values[0].as_py(), 1.0)}, id=id)
    assert main(["feed", store.url, "--stream", stream, "--url", server.url, "--once"]) == 0
    assert "3 rows sent, 0 entries rejected" in capsys.readouterr().out
