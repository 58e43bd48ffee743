"""The remote tier against stores whose replies are wrong: of another model, of no Redis, or endless."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hiredis import ReplyError

from polyrec.models.tiers.remote.cluster import ServerRows
from polyrec.models.tiers.remote.login import Login
from polyrec.models.tiers.remote.remote import RemoteTier
from polyrec.models.tiers.remote.request import READ_BYTES, send_commands, values_of
from polyrec.models.tiers.remote.server import MAX_CODES, MAX_LATE, Server
from polyrec.models.tiers.row_format import RowFormat
from tests.models.tiers.redis_server import ProtectedStore, RedisServer
from tests.models.tiers.waiting import wait_until

IDS, ZEROS = np.arange(3), np.zeros(3, np.int64)
FALLBACK = np.full((1, 4), 9, np.uint8)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


class Answering:
    """A listener that answers each command with the bytes given for it."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while asked := connection.recv(1 << 16):
                connection.sendall(next(self._answers[w] for w in self._answers if w in asked))


def test_the_log_has_the_error_of_a_store_that_refuses_requests(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.send("ACL", "SETUSER", "blind", "on", ">secret", "~*", "+ping", "+info")
    tier = RemoteTier(server.url, ["a"], FALLBACK, 5.0, login=Login("blind", "secret"))
    for _ in range(2):
        assert not tier.receive(tier.send(ZEROS, IDS))[1].any()
    (line,) = caplog.messages
    assert f"the remote store at {server.url} refuses requests: NOPERM" in line
    tier.close()


@pytest.mark.parametrize("database", ["", "/3"])  # for which redis-py sends a command when it connects
def test_a_store_in_protected_mode_is_reported_with_its_reason(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProtectedStore()
    tier = RemoteTier(store.url + database, ["a"], FALLBACK, 5.0)
    assert not tier.up
    with pytest.raises(
        OSError, match="does not answer: refuses connections: DENIED Redis is running in prot"
    ):
        tier.write(ZEROS, IDS, np.zeros((3, 4), np.uint8))
    (line,) = caplog.messages
    assert "failed: refuses connections: DENIED Redis is running in protected mode" in line
    tier.close()
    store.close()


def test_a_frequent_error_hides_no_other_one(caplog: pytest.LogCaptureFixture) -> None:
    store = Answering({b"MGET": b"*3\r\n-BUSY one\r\n-BUSY two\r\n-NOPERM no\r\n", b"": b"$0\r\n\r\n"})
    tier = RemoteTier(store.url, ["a"], FALLBACK, timeout_s=5.0)
    for _ in range(2):
        assert not tier.receive(tier.send(ZEROS, IDS))[1].any()
    assert [line.partition(" refuses requests: ")[2] for line in caplog.messages] == ["BUSY one", "NOPERM no"]
    tier.close()
    store.close()


def test_a_store_that_invents_error_codes_gets_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("redis://127.0.0.1:1", Login())
    for number in range(10 * MAX_CODES):
        server.log_error(f"CODE{number} of its own")
    assert len(caplog.messages) == MAX_CODES + 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"*4294967295\r\n", ""),  # hiredis raises a MemoryError
        (b"%1\r\n*1\r\n+a\r\n+b\r\n", "unhashable"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "Protocol error"),
        (b":5\r\n", None),
        (b"$-1\r\n", None),
        (b"*0\r\n", None),
        (b"*3\r\n$-1\r\n$-1\r\n$-1\r\n+more\r\n", "more replies than"),
        (b"*3\r\n$-1\r\n$-1\r\n$-1\r\n$9", "more replies than"),
        (b"*1\r\n$900000000\r\n" + bytes(3 * READ_BYTES), "more bytes than"),
    ],
)
def test_what_is_no_row_is_lost_and_raises_nothing(
    reply: bytes, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is logged if the connection is closed."""
    store = Answering({b"MGET": reply, b"": b"$0\r\n\r\n"})
    tier = RemoteTier(store.url, ["a"], FALLBACK, timeout_s=5.0)
    for _ in range(2):
        rows, found = tier.receive(tier.send(ZEROS, IDS))
        assert not found.any()
        np.testing.assert_array_equal(rows, np.repeat(FALLBACK, 3, axis=0))
        wait_until(lambda: tier.up, "the store is not asked again")
    said = [line for line in caplog.messages if " failed: " in line]
    assert [(reason or "") in line for line in said] == [True] * (reason is not None)
    tier.close()
    store.close()


@pytest.mark.parametrize("state", [b":5\r\n", b"$-1\r\n"])
def test_a_store_that_does_not_tell_its_state_is_a_single_server(state: bytes) -> None:
    store = Answering({b"": state})
    assert Server(store.url, Login()).masters(5.0) is None
    store.close()


@pytest.mark.parametrize("state", [b"*4294967295\r\n", b"%1\r\n*1\r\n+a\r\n+b\r\n", b"HTTP/1.1 400\r\n"])
def test_a_reply_that_is_none_is_an_oserror(state: bytes) -> None:
    """Other errors would end the thread that looks for stores that answer again."""
    store = Answering({b"": state})
    with pytest.raises(OSError, match="failed"):
        Server(store.url, Login()).masters(5.0)
    store.close()


@pytest.mark.parametrize(
    ("slots", "masters"),
    [
        (b"*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n$-1\r\n:7000\r\n", [(0, 9, "redis://127.0.0.1:7000")]),
        (b"*1\r\n*3\r\n:0\r\n:9999999999999\r\n*2\r\n$1\r\na\r\n:7000\r\n", None),
        (b"*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n:5\r\n:7000\r\n", None),
    ],
)
def test_a_map_of_a_cluster_without_names_is_read_and_an_impossible_one_refused(
    slots: bytes, masters: list[tuple[int, int, str]] | None
) -> None:
    """`cluster-preferred-endpoint-type unknown-endpoint` sends nil for the host that the client knows."""
    store = Answering({b"INFO": b"$17\r\ncluster_enabled:1\r\n", b"SLOTS": slots})
    server = Server(store.url, Login())
    if masters is None:
        with pytest.raises(OSError, match="a map of its cluster that cannot be read"):
            server.masters(5.0)
    else:
        assert server.masters(5.0) == masters
    store.close()


def test_one_late_reply_among_others_takes_no_server_out(server: RedisServer) -> None:
    """Else all requests until it is asked again lose their rows: 12% of them, of a store late in 2%."""
    tier = RemoteTier(server.url, ["a"], FALLBACK, timeout_s=5.0)
    tier.write(ZEROS, IDS, np.ones((3, 4), np.uint8))
    for _ in range(2 * MAX_LATE):
        late = tier.send(ZEROS, IDS)
        tier._cluster.fail(late.requests[0].part.server, TimeoutError("timed out"))
        assert tier.up
        assert tier.receive(late)[1].all()
    assert tier.failures == 2 * MAX_LATE
    for _ in range(MAX_LATE):
        assert tier.up
        tier._cluster.fail(late.requests[0].part.server, TimeoutError("timed out"))
    assert not tier.up
    wait_until(lambda: tier.up, "the store is not asked again")
    # it has only answered PING since
    tier._cluster.fail(late.requests[0].part.server, TimeoutError("timed out"))
    assert not tier.up
    tier.close()


def test_one_late_login_takes_no_server_out(tmp_path: Path) -> None:
    """A late reply closes its connection, and the next one waits for the reply to AUTH."""
    server = RedisServer(tmp_path, "--requirepass", "secret")
    tier = RemoteTier(server.url, ["a"], FALLBACK, timeout_s=0.05, login=Login(None, "secret"))
    server.signal(signal.SIGSTOP)
    for _ in range(MAX_LATE):
        assert tier.up
        assert not tier.receive(tier.send(ZEROS, IDS))[1].any()
    assert not tier.up
    server.signal(signal.SIGCONT)
    wait_until(lambda: tier.up, "the store is not asked again")
    tier.close()
    server.kill()


def test_a_dead_server_to_which_another_redirects_is_a_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        store = Answering({b"MGET": b"-MOVED 1 127.0.0.1:%d\r\n" % port, b"": b"$0\r\n\r\n"})
        tier = RemoteTier(store.url, ["a"], FALLBACK, timeout_s=5.0)
        for _ in range(5):
            assert not tier.receive(tier.send(ZEROS, IDS))[1].any()
            wait_until(lambda: tier._cluster._repairer is None, "the servers are not sought")
        tier.close()
    (line,) = caplog.messages
    assert f"at {store.url} redirects requests to redis://127.0.0.1:{port}, which failed: cannot be" in line
    store.close()


@pytest.mark.parametrize(
    "value", [b"short", np.full(1, np.nan, "f4").tobytes(), np.full(1, 3e38, "f4").tobytes()]
)
def test_values_that_are_no_rows_are_lost_and_the_log_says_so(
    value: bytes, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Served, NaN would make every request with the row a 422 that blames the client's features."""
    sound = RowFormat(1, "fp32").sound
    tier = RemoteTier(server.url, ["a"], FALLBACK, timeout_s=5.0, sound=sound)
    tier.write(ZEROS, IDS, np.ones((3, 1), np.float32).view(np.uint8))
    server.send("SET", "polyrec:a:000000000001", value)
    rows, found = tier.receive(tier.send(ZEROS, IDS))
    assert found.tolist() == [True, False, True]
    np.testing.assert_array_equal(rows[1], FALLBACK[0])
    (line,) = caplog.messages
    assert "has 1 of 3 values that are no rows of this bundle" in line
    tier.close()


@pytest.mark.parametrize("seed", range(20))
def test_values_are_taken_from_replies_of_the_right_type_and_size_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = range(int(random.integers(1, 30)))
    asked = rows if seed % 2 else [2 * i for i in rows]
    wrong = [None, 5, b"", b"12345", "1234", [b"1234"], ReplyError("MOVED 1 a:1")]
    replies = [random.bytes(4) for _ in rows]
    for i in rows if seed >= 4 else ():
        if random.random() < 0.3:
            replies[i] = wrong[random.integers(len(wrong))]
    if seed % 3 == 2:
        replies = replies[: int(random.integers(len(replies) + 1))]
    there, values = values_of(asked, replies, 4)
    right = [(i, reply) for i, reply in zip(asked, replies, strict=False) if type(reply) is bytes]
    right = [(i, reply) for i, reply in right if len(reply) == 4]
    assert there.dtype == np.int64
    assert there.tolist() == [i for i, _ in right]
    assert [value.tobytes() for value in values] == [reply for _, reply in right]


def test_a_request_that_its_socket_cannot_hold_is_not_waited_for(server: RedisServer) -> None:
    stopped = Server(server.url, Login())
    connection = stopped.connect(60.0)
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(OSError, match="buffer of its socket is full"):
            send_commands(ServerRows(stopped, [0]), connection, [(b"PING", bytes(1 << 26))], 4, at_once=True)
        # what was sent of it would precede the next request
        assert connection._sock is None
    finally:
        server.signal(signal.SIGCONT)


def test_a_connection_used_at_once_waits_again_for_larger_requests(server: RedisServer) -> None:
    tier = RemoteTier(server.url, ["a"], FALLBACK, timeout_s=60.0)
    count = 100_000
    tables, ids = np.zeros(count, np.int64), np.arange(count)
    tier.write(tables[:3], ids[:3], np.zeros((3, 4), np.uint8))
    tier.receive(tier.send(tables[:3], ids[:3]))
    batch = tier.send_at_once(tables[:3], ids[:3])
    assert batch is not None
    assert tier.receive(batch)[1].all()
    # more than the buffer holds
    assert tier.receive(tier.send(tables, ids))[1].sum() == 3
    assert not tier.failures
    tier.close()


def test_long_keys_that_a_socket_might_not_hold_are_not_sent_at_once(server: RedisServer) -> None:
    tier = RemoteTier(server.url, ["a"], FALLBACK, prefix="p" * 200, timeout_s=60.0)
    tables, ids = np.zeros(200, np.int64), np.arange(200)
    tier.receive(tier.send(tables, ids))  # opens a connection
    few = tier.send_at_once(tables[:10], ids[:10])
    assert few is not None
    tier.receive(few)
    assert tier.send_at_once(tables, ids) is None
    tier.close()
