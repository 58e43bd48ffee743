"""Reads a feed from a Kafka topic; the offsets of a consumer group remember what was acknowledged.

The feed assigns all partitions of the topic to itself instead of sharing them within the group. A group
member that is slow to poll, as while the server is away, would be evicted, and the member that gets its
partitions could send newer values before older ones. So a group has exactly one feed, like each server.

When a topic grows, its keys move to other partitions. So partitions without acknowledged messages are read
after the others, once those have been read up to where they ended when the new partitions were found.

librdkafka reports errors of single brokers and retries all of them forever. Such an error ends or interrupts
the feed only if the brokers that lead the partitions do not answer either.

The value of a message is the document of the HTTP call, or an update file if a header `format` says
`safetensors`; the call's options are then headers too. Rejected messages go to the topic `<name>.rejected`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from polyrec.feed.entries import OPTIONS
from polyrec.feed.source import (
    ANSWER_S,
    BLOCK_S,
    LATEST_TIME_S,
    READ_MESSAGES,
    FeedFailed,
    Message,
    SourceAway,
)
from polyrec.models.text import printable

log = logging.getLogger("polyrec.feed")

PARTITIONS_S = 60.0
"""Time between two looks for new partitions."""
MAX_BYTES = "1000000000"
"""Maximum bytes of a rejected message; librdkafka's own limit is that of no broker, 1,000,000."""
LOG_LEVEL = "2"
"""The highest severity that librdkafka itself prints, which are no failed connections."""
VALUE = b"value"
"""Field with the value of a message whose format its headers do not tell."""
LASTING = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
    )
)
"""Errors that persist until something is changed; all others are retried."""


def read_settings(file: Path) -> dict[str, str]:
    """Reads librdkafka settings, one NAME=VALUE per line, as Kafka's own tools do.

    Raises FeedFailed.
    """
    found = {}
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise FeedFailed(f"'{file}': {getattr(e, 'strerror', None) or 'is no text'}") from None
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            name, equals, value = stripped.partition("=")
            if not equals:
                # do not show the line, which may contain a password
                raise FeedFailed(f"'{file}', line {number}: a setting is NAME=VALUE")
            found[name.strip()] = value.strip()
    return found


_headers = methodcaller("headers")
"""Calls a message's `headers`. Of a name that is not UTF-8 the client returns a broken list with an error
set; a call written as `raw.headers()` does not look at the error once it is hot, and the process crashes."""


class KafkaTopic:
    """A topic of updates. brokers: comma-separated HOST:PORT. settings: additional librdkafka settings."""

    def __init__(self, brokers: str, name: str, group: str, settings: Mapping[str, str] = {}) -> None:
        self.name = name
        self._suspected: KafkaError | None = None
        common = {"log_level": LOG_LEVEL, **settings, "bootstrap.servers": brokers, "error_cb": self._failed}
        own = {
            "group.id": group,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": "true",
        }
        try:
            self._consumer = Consumer(common | own)
            # a message that was read must fit when it is rejected, and only the brokers know their limit
            self._producer = Producer({"message.max.bytes": MAX_BYTES} | common)
        except KafkaException as e:
            raise FeedFailed(f"the settings for Kafka: {e.args[0].str()}") from None
        self._partitions = 0
        self._assigned: tuple[int, ...] = ()
        self._ends: dict[int, int] = {}
        self._counted_s = 0.0
        self._at_end: set[int] = set()

    def open(self) -> None:
        self._assign(self._count())

    def rewind(self) -> None:
        self.open()

    def read(self, block: bool) -> list[Message]:
        if time.monotonic() - self._counted_s > PARTITIONS_S and (count := self._count()) != self._partitions:
            self._assign(count)
        if self._ends and self._reached_ends():
            self._assign_all()
        until_s = time.monotonic() + (BLOCK_S if block else ANSWER_S)
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            with self._reported():
                self._producer.poll(0)  # error reports are queued until they are polled
                first = self._consumer.poll(0.0 if self._ended(block) else left_s)
                raw = [] if first is None else [first, *self._consumer.consume(READ_MESSAGES - 1, 0)]
            self._check_suspected()
            messages = [self._message(one) for one in raw if not self._is_end(one)]
            if messages:
                # each run must come from a single partition
                return sorted(messages, key=lambda message: message.part)
            if self._ends and self._reached_ends():
                self._assign_all()
                continue
            if self._ended(block):
                return []
            if time.monotonic() >= until_s:
                if block:
                    return []
                raise SourceAway(f"topic '{printable(self.name)}': no answer within {ANSWER_S:g} s")

    def acknowledge(self, messages: Sequence[Message]) -> None:
        last = {message.part: _offset(message) for message in messages}
        offsets = [TopicPartition(self.name, part, offset + 1) for part, offset in last.items()]
        with self._reported():
            # a synchronous commit waits most of a minute for an absent broker, whatever the limits
            self._consumer.commit(offsets=offsets, asynchronous=True)
            for one in self._consumer.committed(offsets, timeout=ANSWER_S):
                if one.error is not None:
                    self._raise(one.error)
                if one.offset != last[one.partition] + 1:
                    raise SourceAway(
                        f"topic '{printable(self.name)}': offset {last[one.partition] + 1} was not committed"
                    )

    def reject(self, message: Message, reason: str) -> None:
        failed: list[KafkaError] = []
        headers: list[tuple[str, Any]] = [("rejected_id", message.id), ("rejected_reason", reason)]
        value = None
        for name, content in message.fields.items():
            if name in (b"json", b"safetensors", VALUE):
                value = content
                if name != VALUE:
                    headers.append(("format", name))
            else:
                headers.append((name.decode(), content))
        with self._reported():
            self._producer.produce(
                f"{self.name}.rejected",
                value=value,
                headers=headers,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )
            left = self._producer.flush(ANSWER_S)
        if failed:
            self._raise(failed[0], f"{self.name}.rejected")
        if left:
            self._producer.purge()
            raise SourceAway(f"topic '{printable(self.name)}.rejected': no answer within {ANSWER_S:g} s")
        self.acknowledge([message])

    def close(self) -> None:
        # closing waits most of a minute to commit to absent brokers
        closing = threading.Thread(target=self._consumer.close, daemon=True)
        closing.start()
        closing.join(ANSWER_S)

    def _count(self) -> int:
        """Returns the number of partitions."""
        with self._reported():
            topic = self._consumer.list_topics(self.name, timeout=ANSWER_S).topics[self.name]
        if topic.error is not None:
            self._raise(topic.error)
        self._counted_s = time.monotonic()
        return len(topic.partitions)

    def _assign(self, count: int) -> None:
        """Reads from all partitions, but first those with acknowledged messages, up to their present ends."""
        with self._reported():
            known = self._committed(range(count))
            begun = [one.partition for one in known if one.offset >= 0 or one.partition in self._assigned]
            ends = {} if len(begun) == count else {part: self._end(part) for part in begun}
        self._partitions = count
        self._read_after([one for one in known if one.partition in ends] if ends else known, ends)

    def _assign_all(self) -> None:
        """Reads from all partitions, once those that come first have been read to their ends."""
        with self._reported():
            known = self._committed(range(self._partitions))
        self._read_after(known, {})

    def _committed(self, parts: Sequence[int]) -> list[TopicPartition]:
        """Returns the acknowledged offsets of partitions, negative if there are none. Raises their errors."""
        asked = [TopicPartition(self.name, part) for part in parts]
        known: list[TopicPartition] = self._consumer.committed(asked, timeout=ANSWER_S)
        for one in known:
            if one.error is not None:
                self._raise(one.error)
        return known

    def _end(self, part: int) -> int:
        """Returns the offset after a partition's last message, as its leader reports it now."""
        found = self._consumer.get_watermark_offsets(TopicPartition(self.name, part), timeout=ANSWER_S)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return int(found[1])

    def _reached_ends(self) -> bool:
        """Returns whether the partitions that come first are read to their ends, and thus acknowledged."""
        with self._reported():
            places = self._consumer.position([TopicPartition(self.name, part) for part in self._ends])
        return all(one.partition in self._at_end or one.offset >= self._ends[one.partition] for one in places)

    def _read_after(self, known: Sequence[TopicPartition], ends: dict[int, int]) -> None:
        """Reads from partitions after their acknowledged messages. ends: offsets to reach before reading
        others.
        """
        for one in known:
            if one.offset < 0:
                one.offset = OFFSET_BEGINNING
        with self._reported():
            self._consumer.assign(list(known))
        self._assigned, self._ends = tuple(one.partition for one in known), ends
        self._at_end.clear()

    def _ended(self, block: bool) -> bool:
        """Returns whether a read that does not wait for new messages has found all of them."""
        return not block and len(self._at_end) == len(self._assigned)

    def _is_end(self, raw: Any) -> bool:
        """Returns whether it marks the end of a partition instead of a message; raises any other error."""
        error = raw.error()
        if error is None:
            self._at_end.discard(raw.partition())
            return False
        if error.code() != KafkaError._PARTITION_EOF:
            self._raise(error)
        self._at_end.add(raw.partition())
        return True

    def _message(self, raw: Any) -> Message:
        kind, made_ms = raw.timestamp()
        value = raw.value()
        try:
            headers = {name: value or b"" for name, value in _headers(raw) or ()}
        except (UnicodeDecodeError, SystemError):  # the client's C code reports it as SystemError
            headers = None
        if headers is None:
            fields = {b"headers that are not UTF-8": b""}
            if value is not None:
                fields[VALUE] = value  # included in the rejected message
        elif value is None:
            fields = {b"nothing": b""}
        elif headers.get("format") == b"safetensors":
            fields = {b"safetensors": value}
            fields |= {name.encode(): headers[name] for name in OPTIONS if name in headers}
        else:
            fields = {b"json": value}
        # a producer may send any number, such as microseconds
        known = kind != TIMESTAMP_NOT_AVAILABLE and 0 <= made_ms <= 1e3 * LATEST_TIME_S
        # offsets start again if a topic is recreated, but keys of calls must not repeat
        id = f"{raw.partition()}-{raw.offset()}-{made_ms}"
        return Message(id, fields, made_ms / 1e3 if known else None, raw.partition())

    def _failed(self, error: KafkaError) -> None:
        """Handles connection errors reported by librdkafka."""
        if _is_lasting(error) or (error.code() == KafkaError._ALL_BROKERS_DOWN and self._suspected is None):
            self._suspected = error

    def _check_suspected(self) -> None:
        """Raises the last connection error, unless all partitions can still be read."""
        error, self._suspected = self._suspected, None
        if error is None:
            return
        try:
            for part in range(self._partitions):
                self._end(part)
        except KafkaException:
            self._raise(error)
        if _is_lasting(error):
            log.warning("topic '%s': its partitions can be read, but: %s", printable(self.name), error.str())

    def _raise(self, error: KafkaError, name: str | None = None) -> NoReturn:
        kind = FeedFailed if _is_lasting(error) else SourceAway
        raise kind(f"topic '{printable(name or self.name)}': {error.str()}")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as e:
            suspected, self._suspected = self._suspected, None
            self._raise(suspected if suspected is not None and _is_lasting(suspected) else e.args[0])
        except BufferError:
            raise SourceAway(
                f"topic '{printable(self.name)}': the queue of rejected messages is full"
            ) from None


def _is_lasting(error: KafkaError) -> bool:
    return error.fatal() or error.code() in LASTING


def _offset(message: Message) -> int:
    return int(message.id.split("-")[1])
