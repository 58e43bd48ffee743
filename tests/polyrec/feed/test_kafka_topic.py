"""`polyrec feed` from a topic to a real server; the brokers are those of librdkafka's own mock cluster."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import httpx
import numpy as np
import pytest

from polyrec.cli.main import main
from polyrec.feed.entries import parse_entry
from polyrec.feed.feed import Feed
from polyrec.feed.kafka_topic import KafkaTopic, read_settings
from polyrec.feed.source import FeedFailed, Message, SourceAway
from polyrec.models.tiers.updates.update import TableUpdate, UpdateError
from polyrec.models.tiers.updates.update_file import encode_update
from polyrec.server.child import ServerProcess
from tests.polyrec.feed.updates import WIDTH, document, metrics

BROKER = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": "0"})
(broker,) = producer.list_topics(timeout=10).brokers.values()
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""


class Brokers:
    """A cluster of one broker in a process of its own; topics are made by their first message."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", BROKER]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self._producer = kafka.Producer(
            {"bootstrap.servers": self.address, "linger.ms": 0, "message.max.bytes": 10_000_000}
        )

    def send(self, topic: str, value: bytes | None, part: int = 0, time_ms: int = 0, **headers: str) -> None:
        """time_ms: 0 for now."""
        self._producer.produce(topic, value, partition=part, timestamp=time_ms, headers=list(headers.items()))
        assert self._producer.flush(10) == 0

    def messages(self, topic: str) -> list[Any]:
        """All messages of a topic."""
        consumer = kafka.Consumer(
            {"bootstrap.servers": self.address, "group.id": "test", "enable.partition.eof": "true"}
        )
        parts = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([kafka.TopicPartition(topic, part, kafka.OFFSET_BEGINNING) for part in parts])
        found, ended = [], 0
        while ended < len(parts):
            message = consumer.poll(10)
            assert message is not None
            if message.error() is None:
                found.append(message)
            else:
                ended += 1
        consumer.close()
        return found

    def kill(self) -> None:
        """Ends the brokers; what they held is gone."""
        self._process.kill()
        self._process.communicate()


def read_some(topic: KafkaTopic) -> list[Message]:
    """Returns the next messages, which may take some fetches."""
    return next(messages for _ in range(40) if (messages := topic.read(block=True)))


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    made.kill()


def test_updates_of_a_topic_are_served_and_acknowledged(
    brokers: Brokers, server: ServerProcess, items: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sum(metrics(server, "polyrec_update_rows_total").values())
    for i in range(40):
        brokers.send("t", document(items[i], i), part=i % 4, traceparent="of some tracer")
    brokers.send("t", document("not known", 1.0), part=1)
    brokers.send("t", b"{", part=2)
    brokers.send("t", None, part=2)
    update = {"item": TableUpdate(np.empty(0, np.int64), np.ones((1, WIDTH), np.float32), ["new"])}
    brokers.send("t", encode_update(update), part=3, format="safetensors", add="true", expires_s="3600")
    update = {"item": TableUpdate(np.array([3]), np.zeros((1, WIDTH), np.float32), retracted=("new",))}
    brokers.send("t", encode_update(update), part=3, format="safetensors")
    arguments = ["feed", f"kafka://{brokers.address}", "--stream", "t", "--url", server.url, "--once"]
    assert main([*arguments, "--most-rows", "16"]) == 0
    assert "43 rows sent, 3 entries rejected" in capsys.readouterr().out
    reasons = [
        dict(message.headers())["rejected_reason"].decode() for message in brokers.messages("t.rejected")
    ]
    assert len(reasons) == 3
    assert sum("has no value 'not known'" in reason for reason in reasons) == 1
    assert sum(metrics(server, "polyrec_update_rows_total").values()) == before + 43
    assert 0 <= next(iter(metrics(server, "polyrec_update_lag_seconds").values())) < 3600
    # nothing is sent twice
    assert main(arguments) == 0
    assert "0 rows sent, 0 entries rejected" in capsys.readouterr().out
    # another group begins at the beginning
    assert main([*arguments, "--group", "another"]) == 0
    assert "3 entries rejected" in capsys.readouterr().out


def test_messages_that_were_not_acknowledged_are_read_again(brokers: Brokers) -> None:
    for i in range(6):
        brokers.send("again", document(f"v{i}", i), part=i % 2)
    first = KafkaTopic(brokers.address, "again", "g")
    first.open()
    read = [first.read(block=False)]
    while messages := first.read(block=False):
        read.append(messages)
    every = [message for messages in read for message in messages]
    assert sorted(message.part for message in every) == [0, 0, 0, 1, 1, 1]
    part = [message for message in every if message.part == 1]
    first.acknowledge(part[:2])
    first.rewind()
    left = [message.id for message in first.read(block=False)]
    while messages := first.read(block=False):
        left += [message.id for message in messages]
    assert sorted(left) == sorted(message.id for message in every if message not in part[:2])
    first.close()
    second = KafkaTopic(brokers.address, "again", "g")
    second.open()
    (message, *_) = read_some(second)
    assert message.id in left
    second.close()


def test_partitions_that_a_topic_got_later_are_read_after_what_the_others_hold(brokers: Brokers) -> None:
    """The mock brokers cannot add partitions: those of which nothing was acknowledged are the later ones."""
    for part in (0, 1):
        brokers.send("grown", document("old", part), part=part)
    first = KafkaTopic(brokers.address, "grown", "g")
    first.open()
    while messages := first.read(block=False):
        first.acknowledge(messages)
    first.close()
    for i in range(40):
        brokers.send("grown", document(f"v{i}", i), part=i % 4)
    second = KafkaTopic(brokers.address, "grown", "g")
    second.open()
    parts: list[int] = []
    while messages := second.read(block=False):
        second.acknowledge(messages)
        parts += [message.part for message in messages]
    assert sorted(parts) == sorted(10 * [0, 1, 2, 3])
    assert set(parts[:20]) == {0, 1}
    brokers.send("grown", document("last", 1.0), part=3)
    assert [message.part for message in read_some(second)] == [3]
    second.close()


def test_an_error_of_one_broker_ends_nothing_while_all_partitions_can_be_read() -> None:
    brokers = Brokers()
    brokers.send("one", document("a", 1.0))
    topic = KafkaTopic(brokers.address, "one", "g")
    topic.open()
    topic._failed(kafka.KafkaError(kafka.KafkaError._AUTHENTICATION))  # as librdkafka calls it
    (message,) = topic.read(block=False)
    topic.acknowledge([message])
    topic._failed(kafka.KafkaError(kafka.KafkaError._AUTHENTICATION))
    brokers.kill()
    with pytest.raises(FeedFailed):
        topic.read(block=True)
    topic.close()


def test_brokers_that_are_away_are_noticed_while_there_is_nothing_to_read() -> None:
    brokers = Brokers()
    brokers.send("away", document("a", 1.0))
    topic = KafkaTopic(brokers.address, "away", "g")
    topic.open()
    topic.acknowledge(read_some(topic))
    brokers.kill()
    with pytest.raises(SourceAway):
        read_some(topic)
    topic.close()


def test_updates_whose_timestamp_is_no_time_are_sent(
    brokers: Brokers, server: ServerProcess, items: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for time_ms in (1764041000000, 1764041000000000000, 2**62):  # the second is of nanoseconds
        brokers.send("times", document(items[0], 1.0), time_ms=time_ms)
    arguments = ["feed", f"kafka://{brokers.address}", "--stream", "times", "--url", server.url, "--once"]
    assert main([*arguments, "--most-rows", "1"]) == 0
    assert "3 rows sent, 0 entries rejected" in capsys.readouterr().out


def test_a_message_larger_than_librdkafkas_limit_is_rejected(brokers: Brokers) -> None:
    brokers.send("large", b"{" + 2_000_000 * b" ")
    topic = KafkaTopic(brokers.address, "large", "g")
    topic.open()
    (message,) = topic.read(block=False)
    topic.reject(message, "no update")
    assert topic.read(block=False) == []
    topic.close()
    (rejected,) = brokers.messages("large.rejected")
    assert rejected.value() == message.fields[b"json"]
    assert dict(rejected.headers())["rejected_reason"] == b"no update"


def send_header_of_any_bytes(address: str, topic: bytes, name: bytes) -> None:
    """Sends a message as a client in C could; the client for Python sends names in UTF-8 only."""
    (file,) = (Path(kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka-*")
    library = ctypes.CDLL(str(file))
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, function).restype = ctypes.c_void_p
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", address.encode(), None, 0)
    library.rd_kafka_conf_set(settings, b"log_level", b"0", None, 0)
    producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, None, 0))
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(1))
    library.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(len(name)), b"x", ctypes.c_ssize_t(1))
    of_topic, of_value, of_headers, end = 1, 4, 10, 0  # rd_kafka_vtype_t
    value = (of_value, b"[]", ctypes.c_size_t(2))
    assert library.rd_kafka_producev(producer, of_topic, topic, *value, of_headers, headers, end) == 0
    assert library.rd_kafka_flush(producer, 10_000) == 0
    library.rd_kafka_destroy(producer)


def test_a_message_whose_header_is_not_utf_8_is_rejected_and_those_behind_it_are_read(
    brokers: Brokers,
) -> None:
    for _ in range(100):
        brokers.send("header", b"{}", note="plain")
    topic = KafkaTopic(brokers.address, "header", "g")
    topic.open()
    found: list[Message] = []
    while messages := topic.read(block=False):  # until the interpreter has specialized its calls
        found += messages
    send_header_of_any_bytes(brokers.address, b"header", b"\xff\xfe")
    brokers.send("header", b"{}")
    while len(found) < 102:
        found += topic.read(block=True)
    assert sorted(len(message.fields.get(b"json", b"")) for message in found) == [0, *[2] * 101]
    (damaged,) = (message for message in found if b"json" not in message.fields)
    with pytest.raises(UpdateError, match="headers that are not UTF-8"):
        parse_entry(damaged)
    topic.reject(damaged, "no update")
    topic.close()
    (rejected,) = brokers.messages("header.rejected")
    assert rejected.value() == b"[]"


def test_an_update_whose_acknowledgment_was_lost_does_not_count_as_sent() -> None:
    """The brokers die between the answer of the server and its acknowledgment."""
    brokers = Brokers()
    brokers.send("dies", document("a", 1.0))
    topic = KafkaTopic(brokers.address, "dies", "g")
    topic.open()
    calls = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.params["key"])
        if len(calls) == 1:
            brokers.kill()
        feed.ending.set()
        return httpx.Response(200)

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        feed = Feed(topic, http, "http://server/")
        feed.run(once=True)
    assert (len(calls), feed.sent) == (1, 0)
    with pytest.raises(SourceAway):
        topic.rewind()
    topic.close()


@pytest.mark.parametrize(
    ("arguments", "offense"),
    [
        (["kafka://", "--stream", "t"], "brokers are kafka://HOST:PORT"),
        (["kafka://me:secret@here:9092", "--stream", "t"], "passwords are in the file"),
        (["kafka://here:9092/t", "--stream", "t"], "the topic is --stream"),
        (["kafka://127.0.0.1:1", "--stream", "t"], "topic 't': "),
        (["BROKERS", "--stream", "none"], "Unknown topic"),
        (["BROKERS", "--stream", "t", "--kafka-config", "none"], "No such file"),
        (["BROKERS", "--stream", "t", "--kafka-config", "FILE"], "a setting is NAME=VALUE"),
        (["redis://127.0.0.1:1", "--stream", "t", "--kafka-config", "FILE"], "is for kafka://"),
    ],
)
def test_feed_exits_with_one_line_for_a_permanent_error(
    arguments: list[str],
    offense: str,
    brokers: Brokers,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "settings").write_text("# of the cluster\nsasl.password secret\n")
    given = {"BROKERS": f"kafka://{brokers.address}", "FILE": str(tmp_path / "settings")}
    assert main(["feed", *(given.get(a, a) for a in arguments), "--once"]) == 2
    reported = capsys.readouterr().err
    assert offense in reported
    assert "secret" not in reported


def test_settings_of_kafka_are_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text("# comment\n\nsasl.mechanism = PLAIN\nsasl.password=a=b\n")
    assert read_settings(file) == {"sasl.mechanism": "PLAIN", "sasl.password": "a=b"}
    with pytest.raises(FeedFailed, match="No such configuration property"):
        KafkaTopic("127.0.0.1:1", "t", "g", {"no.such": "1"})
